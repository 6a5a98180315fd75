"""How Spark's tasks write the tables of PostgreSQL: by COPY."""
