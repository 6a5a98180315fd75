"""Delta tables: `driver = delta`. Rows are staged, prepared by a manifest, and appended to the table's log."""
