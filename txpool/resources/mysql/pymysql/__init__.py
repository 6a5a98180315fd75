"""MariaDB and MySQL over PyMySQL. What it takes of PyMySQL's private parts stands in this folder alone."""
