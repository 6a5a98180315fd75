"""How a table of marks is written and read: the part that differs with the database.

The SQL that databases share is here; a database with another syntax overrides it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from txpool.resources.base import Refused
from txpool.xid import PREFIX

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver
    from txpool.resources.driver.raw import RawConnection

#: The key of the row that holds the table's own identity: it can be no gtrid.
IDENTITY = f"{PREFIX}:identity"

Statement = tuple[str, list[str]]


class Marks(ABC):
    """Writes and reads the table of marks of one database. It keeps nothing; `raw` is a raw connection of its driver.

    Errors are the driver's, and `Refused` if nothing of a mark will ever be there.
    """

    #: A parameter's placeholder in SQL.
    parameter: ClassVar[str]
    #: The SQL type and default of the column `made_at`, the time at which a row was inserted.
    made_at_type: ClassVar[str]
    #: The SQL type of a text without a limit.
    text_type: ClassVar[str] = "text"

    @staticmethod
    def spelled(statement: str) -> str:
        """A statement of txpool's as the database gets it: its names cannot mean what others have made there."""
        return statement

    @abstractmethod
    def qualified_name(self, raw: RawConnection, table: str) -> str | None:
        """The table's name with its schema, which no other table can hide; None if there is no such table."""

    @abstractmethod
    def require_ours(self, raw: RawConnection, table: str, roles: Collection[str], *, writes: bool) -> None:
        """Raise OperationalError if a role owns or can change the table that is neither ours nor the session's.

        `roles` are ours. With `writes`, lock the table, so that nobody changes it before the transaction ends.
        """

    @abstractmethod
    def is_sole_writer(self, raw: RawConnection) -> bool:
        """Whether the connection's open transaction excludes every other writer (SQLite)."""

    @abstractmethod
    def database_identity(self, raw: RawConnection) -> str:
        """The identity of the server and database that the connection leads to; empty if it is not known."""

    @abstractmethod
    def mark(
        self,
        raw: RawConnection,
        table: str,
        row: dict[str, str],
        delete: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
        """Insert the row in the open transaction, whose commit will be durable; returns once that is answered.

        The rows of finished transactions in `delete` are deleted with it, if the isolation level allows. Returns the
        row's key for `commit_row`, and the gtrids that were deleted. `WrongTable` if the table has another identity;
        that is asked once for each connection, which cannot move to another database. `AbortRecorded` if a tombstone
        has the row's key. `until` is when to stop waiting for the answer, by the monotonic clock.
        """

    @abstractmethod
    def commit_row(self, raw: RawConnection, table: str, row: str, branches: str) -> None:
        """Update the row's `branches`, and commit. `Refused` is definite, any other error leaves it unknown."""

    @abstractmethod
    def begin(self, raw: RawConnection, lock_timeout: float, *, writes: bool) -> None:
        """Begin a transaction with durable commit on a fresh connection; `lock_timeout` is in seconds."""

    def delete(self, driver: Driver, raw: RawConnection, table: str, keys: Sequence[str]) -> None:
        """Delete the rows of these keys in the open transaction."""
        these = ", ".join([self.parameter] * len(keys))
        driver.execute(raw, self.spelled(f"delete from {table} where xid in ({these})"), keys)

    # -- SQL, with its values -----------------------------------------------------------------------------------

    def create(self, table: str, key_length: int = 64) -> str:
        """The statement that creates the table, if it does not exist."""
        return (
            f"create table if not exists {table} (xid varchar({key_length}) primary key, "
            "transaction_manager_id varchar(64) not null, action_uid varchar(64) not null, "
            "kind varchar(6) not null check (kind = 'commit' or kind = 'abort'), "
            f"branches {self.text_type} not null, confirmed integer not null default 0, made_at {self.made_at_type})"
        )

    def put_tombstone(self, table: str, row: dict[str, str]) -> Statement:
        """Insert the tombstone; if a row has its key, update that row, which makes it durable."""
        return self._insert(table, row, "confirmed = met.confirmed + 1"), [*row.values()]

    def put_identity(self, table: str, row: dict[str, str], former: str) -> Statement:
        """Insert the row with the table's identity, or replace `former`; another process's new identity stays."""
        change = "action_uid = excluded.action_uid, branches = excluded.branches"
        statement = self._insert(table, row, f"{change} where met.action_uid = {self.parameter}")
        return statement, [*row.values(), former]

    # -- their execution ----------------------------------------------------------------------------------------

    def write_tombstone(self, execute: Callable[..., Any], table: str, row: dict[str, str]) -> None:
        """Execute `put_tombstone`, or statements that do the same together."""
        statement, values = self.put_tombstone(table, row)
        execute(self.spelled(statement), values)

    def write_identity(self, execute: Callable[..., Any], table: str, row: dict[str, str], former: str) -> None:
        """Execute `put_identity`, or statements that do the same together."""
        statement, values = self.put_identity(table, row, former)
        execute(self.spelled(statement), values)

    def read_rows(self, execute: Callable[..., Any], table: str) -> list[Any]:
        """Every row that is committed: xid, transaction_manager_id, kind, branches."""
        found: list[Any] = execute(f"select xid, transaction_manager_id, kind, branches from {table}").fetchall()
        return found

    def _plain_insert(self, table: str, row: dict[str, str]) -> str:
        values = ", ".join([self.parameter] * len(row))
        return f"insert into {table} ({', '.join(row)}) values ({values})"

    def _insert(self, table: str, row: dict[str, str], change: str) -> str:
        return (
            f"insert into {table} as met ({', '.join(row)}) "
            f"values ({', '.join([self.parameter] * len(row))}) on conflict (xid) do update set {change}"
        )


class WrongTable(Refused):
    """The table of marks has another identity than the one that was read before."""

    def __init__(self) -> None:
        super().__init__(
            "the table of marks is not the one that the datasource had before: it was replaced, or the url leads to "
            "another database now. The next transaction uses the table that is there"
        )


class AbortRecorded(Refused):
    """A tombstone has the row's key: recovery has aborted the transaction."""

    def __init__(self) -> None:
        super().__init__("recovery has written an abort record in place of the row, so the transaction must roll back")
