"""What takes part in a transaction, as that sees it, and the part of what is no database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import ref

from txpool.resources.own.awaited import finished
from txpool.tm.completion.dropped import Droppable
from txpool.tm.completion.status import ACTIVE, UNDER_WAY, Status

if TYPE_CHECKING:
    from txpool.locks import RLock
    from txpool.resources.base import Role
    from txpool.resources.deadlines import Deadlines
    from txpool.sql.characteristics import Characteristics
    from txpool.xid import Xid

E_co = TypeVar("E_co", bound="Part", covariant=True)


class Enlists(Droppable, Protocol):
    """A transaction, as its parts know it."""

    characteristics: Characteristics
    deadlines: Deadlines
    label: str
    #: Makes the locks that are held over waits.
    new_lock: Callable[[], RLock]

    @property
    def active(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    @property
    def rollback_cause(self) -> BaseException | None: ...

    def require_active(self) -> None: ...

    def early_name(self, datasource: str) -> Xid: ...

    def set_rollback_only(self, reason: BaseException | None = None) -> None: ...

    def release(self, enlistment: Part) -> None: ...


class TakesPart(Protocol[E_co]):
    """A datasource, or a resource of a user's own: a transaction knows it by its name."""

    @property
    def name(self) -> str: ...

    @property
    def mode(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def url(self) -> str:
        """For traces, and for messages."""

    def why_not_begin(self, characteristics: Characteristics) -> str:
        """Why it cannot begin so; empty if it can."""

    @property
    def enlistment_class(self) -> Callable[[Any, Enlists], E_co]:
        """Makes its part in a transaction, which has not begun yet."""


class Part:
    """One datasource's part in one transaction: its work, and its branch. Thread-safe. A database's has connections."""

    #: As its branch's: see `ResourceBranch`.
    needs_decision = True
    branch: Any

    def __init__(self, datasource: Any, transaction: Enlists) -> None:
        self.datasource = datasource
        self.lock = transaction.new_lock()
        #: What the transaction works with; None until `open` has begun it.
        self.pooled: Any = None

    def open(self, transaction: Enlists, timeout: float | None) -> None:
        """Begin the work, unless another thread has; `timeout` is how many seconds to wait for a connection."""
        with self.lock:
            if self.pooled is not None:
                return
            work, self.branch = self.datasource.begin(transaction, timeout)
            if self.datasource.names_early:
                self.branch.name(transaction.early_name(self.datasource.name))
            work.owner = ref(transaction)
            self.pooled = work
            if transaction.status is not ACTIVE and transaction.status not in UNDER_WAY:
                finished(work.rollback(), transaction.deadlines.after_decision())  # it has ended since this began
                transaction.require_active()

    def settled_branch(self) -> Any:
        """Its branch, once what another thread does in it has ended; nothing new can begin there."""
        with self.lock:
            return self.branch

    def mark_unreusable(self) -> None:
        """A cancel is on its way, and may reach it late. No I/O."""

    def cancel(self) -> None:
        """Cancel what executes in it. From any thread; never raises. What is no database looks by `require_active`."""

    def release(self, status: Status, *, reusable: bool) -> None:
        """The transaction has ended with this status: give back what the branch has not. It may be called again."""

    def release_left(self, *, dropped: bool = False) -> None:
        """As `release`, if the transaction has ended, or was `dropped`, and an interrupt has kept it from that."""
