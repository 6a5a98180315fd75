"""Columns, and what their values are in Arrow, in PostgreSQL and in SQLite."""
