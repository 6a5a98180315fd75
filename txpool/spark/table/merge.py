"""Moves staged rows into the table: the driver counts them and moves them in its own branch.

An overwrite uses DELETE rather than TRUNCATE, so that other sessions see the old rows until the transaction commits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txpool.datasource import DataSource
from txpool.errors import DataError, NotSupportedError, OperationalError, described
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.trust import require_relations
from txpool.resources.recovery_access import StagingTable
from txpool.spark.commit.attempts import PartitionResult
from txpool.spark.table.copying import ATTEMPT
from txpool.spark.table.dialect import dialect_of
from txpool.spark.table.target import Target, create_statement
from txpool.spark.types.columns import Layout
from txpool.spark.types.identifiers import quoted, quoted_list
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

_ISOLATION = qualified("select current_setting('transaction_isolation')")
_OF_ATTEMPTS = qualified(f"{ATTEMPT} = any ('{{{{{{}}}}}}'::bigint[])")
#: What counts rows, in SQL without and with its schema.
COUNT_PLAIN = "count(*)"
COUNT = qualified("count(*)")


def drop_staged_after(transaction: Transaction, source: DataSource, table: StagingTable) -> None:
    """Drop a staging table once the transaction has ended."""
    transaction.after_completion(lambda _: drop_staged(source, table))


def drop_staged(source: DataSource, table: StagingTable) -> None:
    """Drop a staging table that is no longer needed. If that fails, recovery drops it."""
    try:
        dialect_of(source).staging(source).drop(table)
    except Exception as error:
        logger.warning("%s: the staging table %s is left to recovery: %s", table.gtrid, table.name, described(error))


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
    #: How many rows there are, and whether there are several: in SQLite without a schema.
    count: str = COUNT
    several: str = qualified("count(*) > 1")

    def run(self, cursor: Any, results: Sequence[PartitionResult]) -> None:
        """Move the rows of the chosen attempts.

        Errors: OperationalError if rows are lost; DataError if two rows have the same key, or a key is NULL.
        """
        rows = {result.attempt: result.size[0] for result in results if result.size[0]}
        # Each statement has a snapshot of its own, and other attempts may commit their rows between two statements.
        chosen = f"where {_OF_ATTEMPTS.format(', '.join(map(str, rows)))}"
        if rows:
            self._require_rows(cursor, chosen, rows)
        self.insert(cursor, chosen if rows else None)

    def insert(self, cursor: Any, chosen: str | None) -> None:
        """Move the rows that a WHERE clause chooses, or none. DataError if two have the same key, or a key is NULL."""
        if chosen is not None and self.mode == "upsert":
            self._require_keys(cursor, chosen)
        if not self.target.exists:
            cursor.execute(create_statement(self.target.name, self.created, self.keys))
        if self.mode == "overwrite":
            cursor.execute(f"delete from {self.target.name}")  # noqa: S608
        if chosen is not None:
            cursor.execute(self._insert_statement(chosen))

    def _require_rows(self, cursor: Any, chosen: str, rows: Mapping[int, int]) -> None:
        """Check that every chosen attempt has as many rows as it has reported, in a staging table that is ours.

        The rows that the INSERT adds are not counted, since a trigger or a rule of the table may leave some out.
        """
        (isolation,) = cursor.execute(_ISOLATION).fetchone()
        if isolation not in ("read committed", "read uncommitted"):
            raise NotSupportedError(
                f"{self.gtrid}: a transaction with isolation level {isolation} cannot see the rows that tasks have "
                "staged: leave the level as the database has it, or write with strategy='direct'. All of it "
                "rolls back"
            )
        require_relations(cursor, self.staging, types=False)
        query = f"select {ATTEMPT}, {self.count} from {self.staging} {chosen} group by 1"  # noqa: S608
        staged: dict[int, int] = dict(cursor.execute(query).fetchall())
        for attempt, reported in rows.items():
            if staged.get(attempt, 0) != reported:
                raise OperationalError(
                    f"{self.gtrid}: task attempt {attempt} had staged {reported} rows for {self.target.name}, and "
                    f"{staged.get(attempt, 0)} are there: the server has crashed meanwhile, which empties unlogged "
                    "tables. The transaction rolls back, and the table is as it was: do it again"
                )

    def _require_keys(self, cursor: Any, chosen: str) -> None:
        """Check that each row has a key, and no two rows the same key, since only one of them could stay."""
        keys = quoted_list(self.keys)
        null = " or ".join(f"{quoted(key)} is null" for key in self.keys)
        query = (
            f"select {keys}, {self.count} from {self.staging} {chosen} group by {keys} "  # noqa: S608
            f"having {self.several} or {null} limit 1"
        )
        found = cursor.execute(query).fetchone()
        if found is not None:
            *key, number = found
            values = ", ".join(f"{name} = {value!r}" for name, value in zip(self.keys, key, strict=True))
            why = f"{number} rows have it, and only one could stay" if None not in key else "a key must have a value"
            raise DataError(
                f"{self.gtrid}: upsert into {self.target.name}: key {values}: {why}. The transaction rolls back, and "
                "the table is as it was"
            )

    def _insert_statement(self, chosen: str) -> str:
        names = quoted_list(self.layout.names)
        statement = (
            f"insert into {self.target.name} ({names}) {self.target.overriding} "  # noqa: S608
            f"select {names} from {self.staging} {chosen}"
        )
        if self.mode == "upsert":
            sets = [f"{quoted(n)} = excluded.{quoted(n)}" for n in self.layout.names if n not in self.keys]
            action = f"update set {', '.join(sets)}" if sets else "nothing"
            statement += f" on conflict ({quoted_list(self.keys)}) do {action}"
        return statement
