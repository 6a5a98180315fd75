"""Lake tables in a transaction: `catalog(file)` is pyiceberg's catalog, `write_table()` appends to Delta tables."""

from txpool.lake.appending import write_table
from txpool.lake.opening import catalog

__all__ = ["catalog", "write_table"]
