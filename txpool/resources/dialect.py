"""What differs between the databases of a local transaction: how it commits and rolls back.

A commit has three ends, not two: it returns, it raises `Refused` (the database has answered no, and nothing of it
will ever be there), or it raises anything else, and nobody knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from txpool.resources.base import ReadOnlyCheck
from txpool.resources.deadlines import Deadlines

if TYPE_CHECKING:
    from txpool.resources.driver import Driver


class Dialect(Protocol):
    """One database's ways with a local transaction."""

    def in_transaction(self, raw: Any) -> bool:
        """Whether there is anything to commit or roll back, without I/O; true where that cannot be told."""

    def watch_commands(self, raw: Any) -> None:
        """From now on, note what the answers to commands show: a write, or what may be one."""

    def note_write(self, raw: Any) -> None:
        """Something was executed that no answer has shown: take it for a write."""

    def read_only_check(
        self, datasource: str, driver: Driver, raw: Any, deadlines: Deadlines, *, committing: bool
    ) -> ReadOnlyCheck | None:
        """How to ask whether only reads were executed since `watch_commands`; None as Participant.read_only_check."""

    def commit(self, raw: Any) -> None:
        """Commit, durably; `Refused` is definite, any other error leaves it unknown."""

    def rollback(self, driver: Driver, raw: Any, until: float | None) -> None:
        """Roll back, or close the connection, which ends its transaction as well. Never raises an Exception.

        `until` is when, by the monotonic clock, an answer is not waited for any more.
        """
