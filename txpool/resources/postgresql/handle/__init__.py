"""psycopg's connection and cursors as users hold them."""
