"""The decision log in a PostgreSQL database."""
