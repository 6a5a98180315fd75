"""How a local transaction commits and rolls back: the part of a driver that differs with the database.

A commit has three ends, not two. It returns: the transaction is committed. It raises `Refused`: it is rolled back, and
nothing of it will ever be there. It raises anything else: nobody knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from txpool.resources.base import BranchOutcome, ReadOnlyCheck
from txpool.resources.deadlines import Deadlines

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver
    from txpool.resources.driver.raw import RawConnection


class Dialect(Protocol):
    """Commits and rolls back local transactions of one database. It keeps nothing; `raw` is a raw connection.

    A class that is derived from this one notes no commands, and has no check of readers.
    """

    def in_transaction(self, raw: RawConnection) -> bool:
        """Whether a local transaction is open, without I/O; true if that cannot be told."""

    def watch_commands(self, raw: RawConnection) -> None:
        """Begin to note, from the answers to commands, whether anything may have been written."""
        return

    def note_write(self, raw: RawConnection) -> None:
        """Note a write: something was executed whose answer was not seen."""
        return

    def read_only_check(
        self, datasource: str, driver: Driver, raw: RawConnection, deadlines: Deadlines, *, committing: bool
    ) -> ReadOnlyCheck | None:
        """A check whether only reads were executed since `watch_commands`; None as `Participant.read_only_check`."""
        return None

    def commit(self, raw: RawConnection) -> None:
        """Commit durably. `Refused` is definite, any other error leaves the outcome unknown."""

    def rollback(self, driver: Driver, raw: RawConnection, until: float | None) -> BranchOutcome:
        """Roll back, or close the connection, which ends its transaction as well. Never raises an Exception.

        ROLLED_BACK; COMMITTED if the database has kept a part of what was done, and LOST if it may have.
        `until` is when to stop waiting for the answer, by the monotonic clock.
        """
