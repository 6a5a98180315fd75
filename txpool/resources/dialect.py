"""What differs between the databases of a local transaction: how it commits, rolls back, and is marked.

A commit has three ends, not two: it returns, it raises `Refused` (the database has answered no, and nothing of it
will ever be there), or it raises anything else, and nobody knows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from txpool.resources.base import ReadOnlyCheck, Refused
from txpool.resources.deadlines import Deadlines
from txpool.xid import PREFIX

if TYPE_CHECKING:
    from txpool.resources.driver import Driver

#: The key of the row that holds the table's own identity: it can be no gtrid.
IDENTITY = f"{PREFIX}:identity"


class Dialect(Protocol):
    """One database's ways with a local transaction and with the table of marks."""

    #: How a parameter is written, and the type of a moment with its default.
    parameter: str
    moment: str

    def is_open(self, raw: Any) -> bool:
        """Whether there is anything to commit or roll back, without I/O; true where that cannot be told."""

    def watch_commands(self, raw: Any) -> None:
        """From now on it is noted what the command tags show of what is executed on the connection."""

    def read_only_check(
        self, datasource: str, driver: Driver, raw: Any, deadlines: Deadlines, *, committing: bool
    ) -> ReadOnlyCheck | None:
        """How to ask whether only reads were executed since `watch`; None as `Participant.reading`."""

    def commit(self, raw: Any) -> None:
        """Commit, durably; `Refused` is definite, any other error leaves it unknown."""

    def rollback(self, driver: Driver, raw: Any, until: float | None) -> None:
        """Roll back, or close the connection, which ends its transaction as well. Never raises an Exception.

        `until` is when, by the monotonic clock, an answer is not waited for any more.
        """

    def qualified(self, raw: Any, table: str) -> str | None:
        """The table's full name, which no search path and no temporary table hides; None where there is none."""

    def require_ours(self, raw: Any, table: str, roles: Collection[str], *, writes: bool) -> None:
        """OperationalError where it belongs to somebody who is none of ours; `roles` are, and the session's own.

        Where it is written over the connection, it stays as it is until the transaction ends.
        """

    def cursor_within(self, raw: Any) -> Any | None:
        """A cursor in the connection's open transaction, where nobody else can write until that ends; else None."""

    def place(self, raw: Any) -> str:
        """What the database is known by on its server; empty where that cannot be told."""

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
        """Insert the row into the open transaction, answered, with durable commit.

        Returns where the row is, and the rides that were deleted. `Strayed` where the table has another identity; that
        is looked at once for a connection, since none can move to another database.
        """

    def commit_row(self, raw: Any, table: str, where: str, branches: str) -> None:
        """As `commit`, with the row that is there rewritten just before it."""

    def begin(self, raw: Any, lock_timeout: float, *, writes: bool) -> None:
        """Begin a durable transaction on a fresh connection that waits for no lock longer than that (seconds)."""


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
