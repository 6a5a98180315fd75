"""Lake tables in a transaction: `catalog(file)` is pyiceberg's catalog, `write_table()` appends to Delta tables."""

from txpool.lake.opening import catalog, write_table

__all__ = ["catalog", "write_table"]
