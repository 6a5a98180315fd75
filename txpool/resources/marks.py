"""What differs between databases with a table of marks: how a row is written, found, and committed.

The SQL that databases share stands here; a database with other words overrides it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from txpool.resources.base import Refused
from txpool.xid import PREFIX

#: The key of the row that holds the table's own identity: it can be no gtrid.
IDENTITY = f"{PREFIX}:identity"

Statement = tuple[str, list[str]]


class Marks(ABC):
    """One database's ways with a table of marks. It keeps nothing; `raw` is a raw connection of its driver."""

    #: How a parameter is written.
    parameter: ClassVar[str]
    #: The type of the moment at which a row was made, with its default.
    made_at_type: ClassVar[str]

    @abstractmethod
    def qualified_name(self, raw: Any, table: str) -> str | None:
        """The table's full name, which no search path and no temporary table hides; None where there is none."""

    @abstractmethod
    def require_ours(self, raw: Any, table: str, roles: Collection[str], *, writes: bool) -> None:
        """OperationalError where it belongs to somebody who is none of ours; `roles` are, and the session's own.

        Where it is written over the connection, it stays as it is until the transaction ends.
        """

    @abstractmethod
    def is_sole_writer(self, raw: Any) -> bool:
        """Whether the connection is in a transaction, and nobody else can write until that ends."""

    @abstractmethod
    def database_identity(self, raw: Any) -> str:
        """What the database is known by on its server; empty where that cannot be told."""

    @abstractmethod
    def mark(
        self,
        raw: Any,
        table: str,
        row: dict[str, str],
        delete: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
        """Insert the row into the open transaction, answered, with durable commit; delete finished rows with it.

        Returns where the row is, and the finished rows that were deleted. `WrongTable` where the table has another
        identity: that is looked at once for a connection, since none can move to another database. `AbortRecorded`
        where a tombstone has the key. `until` is when, by the monotonic clock, an answer is not awaited any more.
        """

    @abstractmethod
    def commit_row(self, raw: Any, table: str, row: str, branches: str) -> None:
        """Commit as the dialect does, with the row that is there rewritten just before it."""

    @abstractmethod
    def begin(self, raw: Any, lock_timeout: float, *, writes: bool) -> None:
        """Begin a durable transaction on a fresh connection that waits for no lock longer than that (seconds)."""

    # -- SQL, with its values -----------------------------------------------------------------------------------

    def create(self, table: str) -> str:
        """The statement that makes the table, unless it is there."""
        return (
            f"create table if not exists {table} (xid varchar(64) primary key, "
            "transaction_manager_id varchar(64) not null, action_uid varchar(64) not null, "
            "kind varchar(6) not null check (kind in ('commit', 'abort')), branches text not null, "
            f"confirmed integer not null default 0, made_at {self.made_at_type})"
        )

    def put_tombstone(self, table: str, row: dict[str, str]) -> Statement:
        """Insert the tombstone, or write to the row that is there: that makes it durable."""
        return self._insert(table, row, "confirmed = met.confirmed + 1"), [*row.values()]

    def put_identity(self, table: str, row: dict[str, str], former: str) -> Statement:
        """Give the table an identity, in place of the former one; who was faster stays."""
        change = "action_uid = excluded.action_uid, branches = excluded.branches"
        statement = self._insert(table, row, f"{change} where met.action_uid = {self.parameter}")
        return statement, [*row.values(), former]

    def _insert(self, table: str, row: dict[str, str], change: str) -> str:
        return (
            f"insert into {table} as met ({', '.join(row)}) "  # noqa: S608 - names of ours, and a configured one
            f"values ({', '.join([self.parameter] * len(row))}) on conflict (xid) do update set {change}"
        )


class WrongTable(Refused):
    """The connection leads to another table of marks than the one whose identity is known."""

    def __init__(self) -> None:
        super().__init__(
            "the table of marks is not the one that its datasource had before: it was replaced, or the url leads "
            "elsewhere now. The next transaction goes by what is there"
        )


class AbortRecorded(Refused):
    """An abort record stands under the key."""

    def __init__(self) -> None:
        super().__init__("recovery's abort record stands where the row would: it has ended this process's work")
