"""The log in a database, shared by coordinators on many hosts."""
