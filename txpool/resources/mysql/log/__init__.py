"""The decision log in a database of MariaDB or MySQL."""
