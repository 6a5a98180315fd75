"""Moves staged rows into a table of MariaDB or MySQL, in the driver's branch.

An overwrite uses DELETE rather than TRUNCATE, which would commit. What a transaction reads with a lock is what has been
committed last, whatever its isolation level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txpool.datasource import DataSource
from txpool.errors import NotSupportedError, OperationalError
from txpool.resources.mysql.session.protocol import code_of
from txpool.resources.mysql.tables.own_tables import DENIED, database_of, quoted
from txpool.resources.mysql.tables.staging import MySQLStaging, MySQLStagingTable, keep_target, require_kept
from txpool.spark.commit.attempts import PartitionResult
from txpool.spark.table.mysql.copying import exact_session
from txpool.spark.table.mysql.types import create_statement, quoted_list
from txpool.spark.table.staging import key_error
from txpool.spark.table.target import Target
from txpool.spark.table.tasks import ATTEMPT
from txpool.spark.types.columns import Layout

if TYPE_CHECKING:
    from txpool.dbapi.cursor import PEP249Cursor

#: The snapshot of the transaction is older than the staging table: what a SELECT, and in MariaDB an INSERT, answers.
_TOO_OLD = frozenset({1412, 159})


@dataclass(frozen=True, slots=True)
class MySQLMerge:
    """Moves the staged rows of one write, for `mode` append, overwrite or upsert on `keys`."""

    datasource: DataSource
    table: MySQLStagingTable
    target: Target
    layout: Layout
    mode: str
    keys: tuple[str, ...]
    #: The columns of a table that is to be created, each with its declaration.
    created: Sequence[tuple[str, str]]

    def run(self, cursor: PEP249Cursor, results: Sequence[PartitionResult]) -> None:
        """Move the rows of the chosen attempts.

        Errors: OperationalError if rows are lost; DataError if two rows have the same key, or a key is NULL.
        """
        rows = {result.attempt: result.size[0] for result in results if result.size[0]}
        created = None if self.target.exists else self._create()
        with exact_session(cursor):
            if created is not None:
                keep_target(cursor, created)
            try:
                self._move(cursor, rows)
            except Exception as error:
                self._explain(error)
                raise

    def _move(self, cursor: PEP249Cursor, rows: Mapping[int, int]) -> None:
        self._require_not_hidden(cursor)
        require_kept(cursor, self.table)
        staging = self._staging(cursor)
        chosen = f"{staging} as staged where staged.{ATTEMPT} in ({', '.join(map(str, rows))})"
        if rows and self.mode == "upsert":  # the number of rows that it changes is another one
            found = self._count(cursor, chosen)
        if self.mode == "overwrite":
            cursor.execute(f"delete from {self.target.name}".encode())
        if not rows:
            return
        names = quoted_list(self.layout.names)
        columns = ", ".join(f"staged.{quoted(name)}" for name in self.layout.names)
        cursor.execute(
            f"insert into {self.target.name} ({names}) select {columns} from {chosen}{self._conflict()}".encode()
        )
        if self.mode != "upsert":
            found = cursor.rowcount
        if found != sum(rows.values()):
            raise OperationalError(
                f"{self.table.gtrid}: tasks had staged {sum(rows.values())} rows for {self.target.name}, and {found} "
                "are there. The transaction rolls back, and the table is as it was: do it again"
            )

    def _require_not_hidden(self, cursor: PEP249Cursor) -> None:
        """NotSupportedError if a temporary table hides the target, behind its qualified name, too."""
        try:
            cursor.execute(f"show create table {self.target.name}".encode())
        except Exception as error:
            if code_of(error) in DENIED:  # of one's own temporary table, nothing is
                return
            raise
        if str(cursor.fetchone()[1]).lower().startswith("create temporary"):
            raise NotSupportedError(
                f"{self.table.gtrid}: in this transaction's session a temporary table hides {self.target.name}, and no "
                "COMMIT would keep what is written there: give it another name. All of it rolls back"
            )

    def _conflict(self) -> str:
        """The clause of an upsert: no other unique index can be meant, as was checked before."""
        if self.mode != "upsert":
            return ""
        names = [name for name in self.layout.names if name not in self.keys] or [self.keys[0]]
        sets = ", ".join(f"{self.target.name}.{quoted(name)} = staged.{quoted(name)}" for name in names)
        return f" on duplicate key update {sets}"

    def _count(self, cursor: PEP249Cursor, chosen: str) -> int:
        """The number of rows. Each has a key, and no two the same key, since only one of them could stay."""
        keys = ", ".join(f"staged.{quoted(key)}" for key in self.keys)
        cursor.execute(f"select count(*), count(distinct {keys}) from {chosen} lock in share mode".encode())
        found, different = cursor.fetchone()
        if found != different:  # if a part of a key is NULL, it is not counted
            self._refuse_keys(cursor, chosen, keys)
        return int(found)

    def _refuse_keys(self, cursor: PEP249Cursor, chosen: str, keys: str) -> None:
        """DataError with a key that two rows have, or that is NULL."""
        null = " or ".join(f"staged.{quoted(key)} is null" for key in self.keys)
        cursor.execute(
            f"select {keys}, count(*) as number from {chosen} group by {keys} "
            f"having number > 1 or {null} limit 1 lock in share mode".encode()
        )
        found = cursor.fetchone()
        if found is not None:
            raise key_error(self.table.gtrid, self.target, self.keys, found)

    def _create(self) -> str:
        staging = MySQLStaging(
            self.datasource.name, self.datasource.driver_adapter, connect=self.datasource.open_session
        )
        statement = create_statement(self.target.name, self.created, self.keys)
        return staging.create_target(self.table, self.target.name, statement)

    def _staging(self, cursor: PEP249Cursor) -> str:
        return f"{database_of(cursor)}.{self.table.name}"

    def _explain(self, error: Exception) -> None:
        if code_of(error) in _TOO_OLD:
            raise NotSupportedError(
                f"{self.table.gtrid}: this transaction has read in {self.datasource.name} before, with isolation level "
                "repeatable-read, so it cannot see what tasks stage from now on: write before it reads, or begin "
                "transaction(isolation='read-committed'). All of it rolls back"
            ) from error
