"""A DB-API driver over JDBC: connection, cursor, values and errors."""
