"""MariaDB and MySQL: driver, handle, XA branches, marks and findings."""
