"""Iceberg tables in a transaction: `txpool.lake.catalog(file)` is pyiceberg's catalog, whose changes commit with it."""

from txpool.lake.opening import catalog

__all__ = ["catalog"]
