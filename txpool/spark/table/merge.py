"""What the driver does with staged rows: counts them, and moves them into the table in its own branch.

Whoever reads the table meanwhile sees the old rows until the transaction commits: DELETE and INSERT leave them to
him, as TRUNCATE would not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txpool.datasource import DataSource
from txpool.errors import DataError, NotSupportedError, OperationalError
from txpool.resources.postgresql.staging import Staging, StagingTable
from txpool.resources.postgresql.trust import require_relations
from txpool.spark.commit.attempts import PartitionResult
from txpool.spark.table.copying import ATTEMPT
from txpool.spark.table.target import Target, create_statement, listed, quoted
from txpool.spark.types.columns import Layout

logger = logging.getLogger("txpool")


def drop_staged(source: DataSource, table: StagingTable) -> None:
    """Drop a staging table that nobody needs any more; what cannot be dropped now is left to recovery."""
    try:
        Staging(source.name, source.driver_adapter).drop(table)
    except Exception as error:
        logger.warning("%s: the staging table %s is left to recovery: %s", table.gtrid, table.name, error)


@dataclass(frozen=True, slots=True)
class StagingMerge:
    """The statements that move a write's staged rows, for `mode` append, overwrite or upsert on `keys`."""

    gtrid: str
    target: Target
    layout: Layout
    mode: str
    keys: tuple[str, ...]
    #: The staging table's full name.
    staging: str
    #: Of a table that is to be created: its columns.
    created: Sequence[tuple[str, str]] = ()

    def run(self, cursor: Any, winners: Sequence[PartitionResult]) -> None:
        """Move the winners' rows. OperationalError where some are lost, DataError where keys are no keys."""
        rows = {result.attempt: result.size[0] for result in winners if result.size[0]}
        # Each statement has a snapshot of its own: attempts that have lost may commit their rows between any two.
        chosen = f"where {ATTEMPT} = any ('{{{', '.join(map(str, rows))}}}'::bigint[])"
        if rows:
            self._require_rows(cursor, chosen, rows)
        self.insert(cursor, chosen if rows else None)

    def insert(self, cursor: Any, chosen: str | None) -> None:
        """Move the rows that a WHERE clause chooses, or none. DataError where keys are no keys."""
        if chosen is not None and self.mode == "upsert":
            self._require_keys(cursor, chosen)
        if not self.target.exists:
            cursor.execute(create_statement(self.target.name, self.created, self.keys))
        if self.mode == "overwrite":
            cursor.execute(f"delete from {self.target.name}")  # noqa: S608
        if chosen is not None:
            cursor.execute(self._insert_statement(chosen))

    def _require_rows(self, cursor: Any, chosen: str, rows: Mapping[int, int]) -> None:
        """Every winner has as many rows as it has reported, in a table of ours.

        Nothing counts what the INSERT does with them: a trigger or a rule of the table's may leave some out.
        """
        (isolation,) = cursor.execute("select current_setting('transaction_isolation')").fetchone()
        if isolation != "read committed":
            raise NotSupportedError(
                f"{self.gtrid}: in a transaction that is {isolation} the rows that tasks have staged cannot be seen: "
                "leave the connection's isolation_level as it is, or write with strategy='direct'. All of it rolls back"
            )
        require_relations(cursor, self.staging, types=False)
        query = f"select {ATTEMPT}, count(*) from {self.staging} {chosen} group by 1"  # noqa: S608
        there: dict[int, int] = dict(cursor.execute(query).fetchall())
        for attempt, reported in rows.items():
            if there.get(attempt, 0) != reported:
                raise OperationalError(
                    f"{self.gtrid}: task attempt {attempt} had staged {reported} rows for {self.target.name}, and "
                    f"{there.get(attempt, 0)} are there: the server has crashed meanwhile, which empties unlogged "
                    "tables. The transaction rolls back, and the table is as it was: do it again"
                )

    def _require_keys(self, cursor: Any, chosen: str) -> None:
        """Each row has a key, and no two the same: which of them should win, nobody could say."""
        keys = listed(self.keys)
        null = " or ".join(f"{quoted(key)} is null" for key in self.keys)
        query = (
            f"select {keys}, count(*) from {self.staging} {chosen} group by {keys} "  # noqa: S608
            f"having count(*) > 1 or {null} limit 1"
        )
        found = cursor.execute(query).fetchone()
        if found is not None:
            *key, number = found
            named = ", ".join(f"{name} = {value!r}" for name, value in zip(self.keys, key, strict=True))
            why = f"{number} rows have it, and only one could stay" if None not in key else "a key must have a value"
            raise DataError(
                f"{self.gtrid}: upsert into {self.target.name}: key {named}: {why}. The transaction rolls back, and "
                "the table is as it was"
            )

    def _insert_statement(self, chosen: str) -> str:
        names = listed(self.layout.names)
        statement = (
            f"insert into {self.target.name} ({names}) {self.target.overriding} "  # noqa: S608
            f"select {names} from {self.staging} {chosen}"
        )
        if self.mode == "upsert":
            sets = [f"{quoted(n)} = excluded.{quoted(n)}" for n in self.layout.names if n not in self.keys]
            action = f"update set {', '.join(sets)}" if sets else "nothing"
            statement += f" on conflict ({listed(self.keys)}) do {action}"
        return statement
