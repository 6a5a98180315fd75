"""A disk that forgets what was not synced, tears sectors, loses directory entries, and fails at the n-th operation.

`recording` writes down what is done to the files of a folder, `vfs` and `calls` listen to SQLite and to Python, `image`
builds what a power loss leaves, `work` runs the real log, `verdict` compares the two.
"""
