"""write_table(): its strategies, its records of transaction ids, and the tables it writes to."""
