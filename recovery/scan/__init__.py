"""One pass: the snapshot that it reads, the modules that act on it, and the report of what they did.

Begin with `reading` (the order of reading), then `snapshot`, `recovery_pass` and the modules in `modules`.
"""
