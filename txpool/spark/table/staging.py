"""What becomes of staged rows: the driver counts them and moves them in its own branch. Then their tables are dropped.

An overwrite uses DELETE rather than TRUNCATE, so that other sessions see the old rows until the transaction commits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txpool.datasource import DataSource
from txpool.errors import DataError, described
from txpool.resources.recovery_access import StagingTable
from txpool.spark.table.dialect import dialect_of
from txpool.spark.table.target import Target, create_statement
from txpool.spark.types.columns import Layout
from txpool.spark.types.identifiers import quoted, quoted_list
from txpool.tm.transaction import Transaction

if TYPE_CHECKING:
    from txpool.dbapi.cursor import PEP249Cursor

logger = logging.getLogger("txpool")

_COUNT = "count(*)"


@dataclass(frozen=True, slots=True)
class StagingMerge:
    """Moves the staged rows of one write, for `mode` append, overwrite or upsert on `keys`."""

    gtrid: str
    target: Target
    layout: Layout
    mode: str
    keys: tuple[str, ...]
    #: The full name of the staging table.
    staging: str
    #: The columns of a table that is to be created, each with its declaration.
    created: Sequence[tuple[str, str]] = ()
    #: How many rows there are, and whether there are several.
    count: str = _COUNT
    several: str = f"{_COUNT} > 1"

    def insert(self, cursor: PEP249Cursor, chosen: str | None) -> None:
        """Move the rows that a WHERE clause chooses, or none. DataError if two have the same key, or a key is NULL."""
        if chosen is not None and self.mode == "upsert":
            self._require_keys(cursor, chosen)
        if not self.target.exists:
            cursor.execute(create_statement(self.target.name, self.created, self.keys))
        if self.mode == "overwrite":
            cursor.execute(f"delete from {self.target.name}")
        if chosen is not None:
            cursor.execute(self._insert_statement(chosen))

    def _require_keys(self, cursor: PEP249Cursor, chosen: str) -> None:
        """Check that each row has a key, and no two rows the same key, since only one of them could stay."""
        keys = quoted_list(self.keys)
        null = " or ".join(f"{quoted(key)} is null" for key in self.keys)
        query = (
            f"select {keys}, {self.count} from {self.staging} {chosen} group by {keys} "
            f"having {self.several} or {null} limit 1"
        )
        found = cursor.execute(query).fetchone()
        if found is not None:
            raise key_error(self.gtrid, self.target, self.keys, found)

    def _insert_statement(self, chosen: str) -> str:
        names = quoted_list(self.layout.names)
        statement = (
            f"insert into {self.target.name} ({names}) {self.target.overriding} "
            f"select {names} from {self.staging} {chosen}"
        )
        if self.mode == "upsert":
            sets = [f"{quoted(n)} = excluded.{quoted(n)}" for n in self.layout.names if n not in self.keys]
            action = f"update set {', '.join(sets)}" if sets else "nothing"
            statement += f" on conflict ({quoted_list(self.keys)}) do {action}"
        return statement


def key_error(gtrid: str, target: Target, keys: Sequence[str], found: Sequence[Any]) -> DataError:
    """The error of an upsert: `found` is a key that two rows have, or that is NULL, and how many rows have it."""
    *key, number = found
    values = ", ".join(f"{name} = {value!r}" for name, value in zip(keys, key, strict=True))
    why = f"{number} rows have it, and only one could stay" if None not in key else "a key must have a value"
    return DataError(
        f"{gtrid}: upsert into {target.name}: key {values}: {why}. The transaction rolls back, and the table is as it "
        "was"
    )


def drop_staged_after(transaction: Transaction, source: DataSource, table: StagingTable) -> None:
    """Drop a staging table once the transaction has ended."""
    transaction.after_completion(lambda _: drop_staged(source, table))


def drop_staged(source: DataSource, table: StagingTable) -> None:
    """Drop a staging table that is no longer needed. If that fails, recovery drops it."""
    try:
        dialect_of(source).staging(source).drop(table)
    except Exception as error:
        logger.warning("%s: the staging table %s is left to recovery: %s", table.gtrid, table.name, described(error))
