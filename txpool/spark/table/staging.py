"""Drops staging tables that are no longer needed."""

from __future__ import annotations

import logging

from txpool.datasource import DataSource
from txpool.errors import described
from txpool.resources.recovery_access import StagingTable
from txpool.spark.table.dialect import dialect_of
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")


def drop_staged_after(transaction: Transaction, source: DataSource, table: StagingTable) -> None:
    """Drop a staging table once the transaction has ended."""
    transaction.after_completion(lambda _: drop_staged(source, table))


def drop_staged(source: DataSource, table: StagingTable) -> None:
    """Drop a staging table that is no longer needed. If that fails, recovery drops it."""
    try:
        dialect_of(source).staging(source).drop(table)
    except Exception as error:
        logger.warning("%s: the staging table %s is left to recovery: %s", table.gtrid, table.name, described(error))
