"""PostgreSQL's branches: PREPARE TRANSACTION, its end, and what is listed."""
