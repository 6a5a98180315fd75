"""A disk that forgets what was not synced, tears sectors, loses directory entries, and fails at the n-th operation.

`tape` writes down what is done to the files of a folder, `vfs` and `calls` listen to SQLite and to Python, `image`
builds what a power loss leaves, `work` is a life of the real log, `judge` compares the two.
"""
