"""How Spark's tasks write tables of MariaDB and MySQL: by INSERT statements with many rows."""
