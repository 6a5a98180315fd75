"""MariaDB and MySQL over mysqlclient (the module MySQLdb)."""
