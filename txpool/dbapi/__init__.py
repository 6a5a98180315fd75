"""The DB-API connections and cursors that users hold, and their part in a transaction."""
