"""write_table() into Iceberg tables: tasks write the files, and the driver puts them into the table's next snapshot."""
