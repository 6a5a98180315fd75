"""txpool's own tables in MariaDB and MySQL: marks, records, staging tables."""
