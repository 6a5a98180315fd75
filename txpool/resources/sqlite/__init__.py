"""SQLite over sqlite3, from the standard library: driver and handle."""
