"""The records of work with a transaction_id, kept in the database of that work, so that a rerun finds it done.

A record is a row, written in the transaction that does the work: both are committed, or neither is. Its key has two
parts: the user's transaction_id, and the target, which is a table or a word. Records of whole transactions and of
Spark's writes are in one table. Recovery deletes none of them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from txpool.errors import NotSupportedError

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection
    from txpool.resources.driver.driver import Driver
    from txpool.resources.driver.raw import SqlCursor

_INSERT = "insert into {table} as it (transaction_id, target, gtrid, mode, plan, batch) values (?, ?, ?, ?, ?, ?) "
_CLAIM = _INSERT + "on conflict do nothing"
# A stream has one row, which each batch updates.
_MOVE_ON = (
    _INSERT + "on conflict (transaction_id, target) do update set gtrid = excluded.gtrid, mode = excluded.mode, "
    "plan = excluded.plan, batch = excluded.batch, partitions = null, row_count = null, made_at = current_timestamp "
    "where it.batch < excluded.batch"
)
_READ = (
    "select gtrid, mode, plan, partitions, row_count, batch, made_at from {table} "
    "where transaction_id = ? and target = ?"
)
_FINISH = "update {table} set partitions = ?, row_count = ? where transaction_id = ? and target = ?"
_KEEP = "update {table} set partitions = coalesce(partitions, ?) where transaction_id = ? and target = ?"

#: The format of a table of records, in its comment (PostgreSQL) or in its CREATE statement (SQLite).
FORMAT = "txpool format 1"
_ANY_FORMAT = re.compile(r"txpool format \d+")


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A committed run with the same transaction_id and target."""

    gtrid: str
    mode: str
    plan: str
    #: None until the run has ended, if each partition is a transaction of its own.
    partitions: int | None
    rows: int | None
    batch: int | None
    #: When the record was inserted; None if a user's own INSERT has left it out.
    made_at: datetime | None


class ConnectableDatasource(Protocol):
    """A datasource, as its table of records uses it."""

    name: str
    driver_adapter: Driver

    def connect(self) -> PEP249Connection: ...


class RecordsTable(ABC):
    """The table of records in one kind of database. A method with a `cursor` works in that cursor's transaction."""

    #: The table's name with its schema.
    table: str
    #: A parameter's placeholder in SQL.
    parameter: str
    #: SQL for the time that was so many seconds before, which are a parameter.
    ago: str

    @abstractmethod
    def create(self, source: ConnectableDatasource, cursor: SqlCursor) -> None:
        """Create the table if it does not exist, in the cursor's transaction or before it."""

    @abstractmethod
    @contextmanager
    def opened(self, source: ConnectableDatasource) -> Iterator[Any]:
        """A cursor in the ambient transaction; the table exists. Each process checks the table once."""

    @abstractmethod
    def may_be_prepared(self, source: ConnectableDatasource) -> bool:
        """Whether a record may belong to a transaction in doubt, which recovery can end."""

    @abstractmethod
    def read_outside(self, source: ConnectableDatasource, transaction_id: str, target: str) -> EarlierRun | None:
        """Read a record outside the transaction, whose snapshot may be older than the record."""

    def insert(self, cursor: SqlCursor, record: list[Any], lock_timeout: int) -> bool | None:
        """Insert a record; False if its key is taken.

        None if another transaction has inserted the key and does not end within `lock_timeout` milliseconds. A
        record is transaction_id, target, gtrid, mode, plan and batch. The record of a batch replaces those of earlier
        batches.
        """
        inserted: int = self._execute(cursor, _CLAIM if record[-1] is None else _MOVE_ON, record).rowcount
        return inserted == 1

    def read(self, cursor: SqlCursor, transaction_id: str, target: str) -> EarlierRun | None:
        found = self._execute(cursor, _READ, [transaction_id, target]).fetchone()
        return None if found is None else EarlierRun(*found)

    def finish(self, cursor: SqlCursor, transaction_id: str, target: str, partitions: int, rows: int | None) -> None:
        """Write how many partitions and rows the work had."""
        self._execute(cursor, _FINISH, [partitions, rows, transaction_id, target])

    def keep(self, cursor: SqlCursor, transaction_id: str, target: str, partitions: int) -> int | None:
        """Write how many partitions the work has, unless that was written before; returns the number that is there."""
        self._execute(cursor, _KEEP, [partitions, transaction_id, target])
        earlier = self.read(cursor, transaction_id, target)
        return None if earlier is None else earlier.partitions

    def forget(self, cursor: SqlCursor, target: str, seconds: float) -> None:
        """Delete the records of a target that were made before so many seconds."""
        self._execute(cursor, f"delete from {{table}} where target = ? and made_at < {self.ago}", [target, seconds])

    def _execute(self, cursor: SqlCursor, statement: str, values: list[Any]) -> Any:
        return cursor.execute(self._statement(statement), values)

    def _statement(self, statement: str) -> str:
        return statement.format(table=self.table).replace("?", self.parameter)


def require_format(table: str, description: str | None) -> None:
    """Raise NotSupportedError if a later version has written the table. A table without a format has the first."""
    found = _ANY_FORMAT.search(description or "")
    if found is not None and found[0] != FORMAT:
        raise NotSupportedError(f"{table} has {found[0]}, and this txpool knows {FORMAT}. Nothing was done")
