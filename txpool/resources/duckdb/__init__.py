"""DuckDB: a marked database in a file that one process has open at a time."""
