"""write_table(): a DataFrame into a table, direct or staged, once under a name; and the tables that it writes to."""
