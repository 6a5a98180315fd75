"""PostgreSQL over psycopg 3: driver, handle, branches that prepare, and whose tables may be trusted."""
