"""A local transaction in DuckDB: its commit and rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

from txpool.errors import described, translate
from txpool.resources.base import BranchOutcome, Refused
from txpool.resources.driver.dialect import Dialect

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver
    from txpool.resources.duckdb.connection import DuckDBRawConnection


class DuckDBDialect(Dialect):
    """Local transactions of DuckDB."""

    def in_transaction(self, raw: DuckDBRawConnection) -> bool:
        return raw.transaction is not None

    def commit(self, raw: DuckDBRawConnection) -> None:
        raw.require_transaction()
        try:
            raw.commit()
        except duckdb.TransactionException as error:  # a conflict, or a key that another has committed meanwhile
            raw.transaction = None
            translate(error)
            raise Refused(f"DuckDB refused to commit: {described(error)}") from error

    def rollback(self, driver: Driver, raw: DuckDBRawConnection, until: float | None) -> BranchOutcome:
        try:
            raw.rollback()
        except duckdb.Error:
            driver.close(raw)
        return BranchOutcome.ROLLED_BACK
