"""How a DataFrame is written into tables of SQLite: by the driver."""
