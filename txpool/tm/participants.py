"""What a transaction needs of the datasources that take part in it."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from txpool.resources.base import MarkedBranch, OpenBranch, Role
    from txpool.tm.transaction import Transaction


class Enlistable(Protocol):
    """What a transaction needs of a datasource."""

    @property
    def name(self) -> str: ...

    @property
    def mode(self) -> str: ...

    @property
    def role(self) -> Role:
        """What its branch is in a transaction."""

    @property
    def url(self) -> str:
        """Where it is, without a password."""

    def open_enlistment(self, transaction: Transaction, timeout: float | None = None) -> Enlistment:
        """Take a physical connection for the whole transaction, and make its branch; wait so many seconds for it."""


class Enlistment(Protocol):
    """One datasource's part in one transaction: its physical connection until the end, and its branch."""

    @property
    def branch(self) -> OpenBranch | MarkedBranch:
        """Its branch; waits for the statement that another thread executes on it."""

    @property
    def mode(self) -> str:
        """The datasource's: xa, cmr, last-resource or local."""

    def mark_unreusable(self) -> None:
        """A cancel is on its way, and may come late: its connection is for nobody else. Before `release`, no I/O."""

    def cancel(self) -> None:
        """Stop what is executing on it; from any thread, never raises, and may take seconds."""

    def release(self, how: str, *, reusable: bool) -> None:
        """The transaction has ended, and so: back to the pool, or destroyed where its state is not certain."""


class Slot:
    """Where a datasource's enlistment will stand: opened by the first thread that needs it, once."""

    __slots__ = ("_opening", "datasource", "enlistment")

    def __init__(self, datasource: Enlistable) -> None:
        self.datasource = datasource
        self.enlistment: Enlistment | None = None
        self._opening = Lock()

    def open(self, transaction: Transaction, timeout: float | None) -> Enlistment:
        with self._opening:
            if self.enlistment is None:
                if transaction.trace is not None:
                    transaction.trace.enlisting(self.datasource)
                self.enlistment = self.datasource.open_enlistment(transaction, timeout)
            return self.enlistment
