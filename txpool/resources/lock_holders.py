"""The protocol between a database and who looks into statements that wait: whose prepared branch holds the lock?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from txpool.resources.recovery_access import PreparedBranch


class LockHolders(Protocol):
    """Finds the prepared branches that sessions of one datasource wait for. Thread-safe.

    Each look opens a connection as the datasource's user, and closes it.
    """

    @property
    def certain(self) -> bool:
        """Whether what is found surely holds the lock. False if the server does not tell which branch does: then
        one of those that are found may hold it.
        """

    def holders(self, waiting: Sequence[Any]) -> list[list[PreparedBranch]]:
        """For each raw connection, the branches of ours that its statement waits for, through others that wait, too.

        Empty if it waits for none, or if that is not known. The raw connections are in use: nothing is done on
        them. A name proves nothing: a branch whose owner is none of ours is left out.
        """


@runtime_checkable
class KnowsSessions(Protocol):
    """What a `LockHolders` may have, too: which sessions hold the locks."""

    def sessions(self, waiting: Sequence[Any]) -> list[list[int]]:
        """For each raw connection, the `session_number`s of those that its statement waits for.

        Empty if it waits for none, or if that is not known. As `LockHolders.holders` otherwise.
        """
