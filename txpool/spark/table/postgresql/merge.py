"""Moves staged rows into a table of PostgreSQL: the driver counts them and moves them in its own branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txpool.errors import NotSupportedError, OperationalError
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.tables.trust import require_relations
from txpool.spark.commit.attempts import PartitionResult
from txpool.spark.table.staging import StagingMerge
from txpool.spark.table.tasks import ATTEMPT

if TYPE_CHECKING:
    from txpool.dbapi.cursor import PEP249Cursor

_ISOLATION = qualified("select current_setting('transaction_isolation')")
_OF_ATTEMPTS = qualified(f"{ATTEMPT} = any ('{{{{{{}}}}}}'::bigint[])")


@dataclass(frozen=True, slots=True)
class PostgreSQLMerge(StagingMerge):
    """As `StagingMerge`, after it has found every row that the attempts have reported."""

    count: str = qualified("count(*)")
    several: str = qualified("count(*) > 1")

    def run(self, cursor: PEP249Cursor, results: Sequence[PartitionResult]) -> None:
        """Move the rows of the chosen attempts.

        Errors: OperationalError if rows are lost; DataError if two rows have the same key, or a key is NULL.
        """
        rows = {result.attempt: result.size[0] for result in results if result.size[0]}
        # Each statement has a snapshot of its own, and other attempts may commit their rows between two statements.
        chosen = f"where {_OF_ATTEMPTS.format(', '.join(map(str, rows)))}"
        if rows:
            self._require_rows(cursor, chosen, rows)
        self.insert(cursor, chosen if rows else None)

    def _require_rows(self, cursor: PEP249Cursor, chosen: str, rows: Mapping[int, int]) -> None:
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
        query = f"select {ATTEMPT}, {self.count} from {self.staging} {chosen} group by 1"
        staged: dict[int, int] = dict(cursor.execute(query).fetchall())
        for attempt, reported in rows.items():
            if staged.get(attempt, 0) != reported:
                raise OperationalError(
                    f"{self.gtrid}: task attempt {attempt} had staged {reported} rows for {self.target.name}, and "
                    f"{staged.get(attempt, 0)} are there: the server has crashed meanwhile, which empties unlogged "
                    "tables. The transaction rolls back, and the table is as it was: do it again"
                )
