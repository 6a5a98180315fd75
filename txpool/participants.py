"""What a transaction needs of the datasources that take part in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from txpool.resources.base import Branch, MarkedBranch
    from txpool.transaction import Transaction


class Enlistable(Protocol):
    """What a transaction needs of a datasource."""

    @property
    def name(self) -> str: ...

    @property
    def mode(self) -> str: ...

    @property
    def url(self) -> str:
        """Where it is, without a password."""

    def open_enlistment(self, transaction: Transaction, timeout: float | None = None) -> Enlistment:
        """Take a physical connection for the whole transaction, and make its branch; wait so many seconds for it."""


class Enlistment(Protocol):
    """One datasource's part in one transaction: its physical connection until the end, and its branch."""

    @property
    def branch(self) -> Branch | MarkedBranch:
        """Its branch; waits for the statement that another thread executes on it."""

    @property
    def mode(self) -> str:
        """The datasource's: xa, cmr, last-resource or local."""

    def doom(self) -> None:
        """A cancel is on its way, and may come late: its connection is for nobody else. Before `release`, no I/O."""

    def cancel(self) -> None:
        """Stop what is executing on it; from any thread, never raises, and may take seconds."""

    def release(self, *, reusable: bool) -> None:
        """The transaction has ended: back to the pool, or destroyed where its state is not certain."""
