"""PostgreSQL over psycopg 3."""
