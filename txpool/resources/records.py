"""The records of work that has a name of the user's own, beside the data of that work; recovery deletes none of them.

A record is a row, written within the transaction that does the work: the one is there exactly where the other is. What
the work is called has two parts: the name, and what it is for, a table or a word. Names of whole transactions and of
Spark's writes stand in one table.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from txpool.errors import NotSupportedError

if TYPE_CHECKING:
    from txpool.datasource import DataSource

_INSERT = "insert into {table} as it (transaction_id, target, gtrid, mode, plan, batch) values (?, ?, ?, ?, ?, ?) "
_CLAIM = _INSERT + "on conflict do nothing"
# A stream has one row, which moves on with it.
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

#: What a table of records says of itself: its comment, in SQLite its statement.
FORMAT = "txpool format 1"
_FORMAT = re.compile(r"txpool format \d+")


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run of the same name that has committed."""

    gtrid: str
    mode: str
    plan: str
    #: None while it has not ended (where each partition is a transaction of its own).
    partitions: int | None
    rows: int | None
    batch: int | None
    #: When it had begun; None where somebody has left that out.
    made_at: datetime | None


class RecordsTable(ABC):
    """Those of one kind of database, within the transaction that a cursor is in."""

    table: str
    parameter: str

    @abstractmethod
    def create(self, source: DataSource, cursor: Any) -> None:
        """Make their table, where it is missing: in the transaction, or before it."""

    @abstractmethod
    @contextmanager
    def opened(self, source: DataSource) -> Iterator[Any]:
        """A cursor in the ambient transaction, with their table there; at the price of one look for each process."""

    @abstractmethod
    def may_be_prepared(self, source: DataSource) -> bool:
        """Whether somebody who has a name may be in doubt, and recovery can end that."""

    @abstractmethod
    def read_outside(self, source: DataSource, transaction_id: str, target: str) -> EarlierRun | None:
        """A record that the transaction does not see, since its snapshot is older."""

    def insert(self, cursor: Any, record: list[Any], lock_timeout: int) -> bool | None:
        """Whether the name was free; None where somebody who has it does not end within so many milliseconds.

        A record is transaction_id, target, gtrid, mode, plan and batch. A batch's takes the place of earlier ones.
        """
        inserted: int = self._execute(cursor, _CLAIM if record[-1] is None else _MOVE_ON, record).rowcount
        return inserted == 1

    def read(self, cursor: Any, transaction_id: str, target: str) -> EarlierRun | None:
        found = self._execute(cursor, _READ, [transaction_id, target]).fetchone()
        return None if found is None else EarlierRun(*found)

    def finish(self, cursor: Any, transaction_id: str, target: str, partitions: int, rows: int | None) -> None:
        """Say how much it was."""
        self._execute(cursor, _FINISH, [partitions, rows, transaction_id, target])

    def keep(self, cursor: Any, transaction_id: str, target: str, partitions: int) -> int | None:
        """Say how many partitions it has, unless somebody has; how many were said."""
        self._execute(cursor, _KEEP, [partitions, transaction_id, target])
        earlier = self.read(cursor, transaction_id, target)
        return None if earlier is None else earlier.partitions

    def _execute(self, cursor: Any, statement: str, values: list[Any]) -> Any:
        return cursor.execute(statement.format(table=self.table).replace("?", self.parameter), values)


def require_format(table: str, said: str | None) -> None:
    """What says nothing was made before there was a number, and has the first."""
    found = _FORMAT.search(said or "")
    if found is not None and found[0] != FORMAT:
        raise NotSupportedError(f"{table} has {found[0]}, and this txpool knows {FORMAT}. Nothing was done")
