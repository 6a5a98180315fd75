"""The embedded log: a folder with a SQLite database, shared by the processes of one node."""
