"""txpool's own tables in PostgreSQL: marks, records, staging tables, and whom they are safe from."""
