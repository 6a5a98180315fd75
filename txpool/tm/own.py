"""How a resource of a user's own takes part in a transaction: `tx.enlist(resource)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from txpool.errors import ProgrammingError
from txpool.resources.base import PREPARED
from txpool.resources.resource import NAME, Resource, Work
from txpool.resources.resource_branch import ResourceBranch
from txpool.tm.rules.enlistment import WRITE_A_LOG
from txpool.tm.status import ACTIVE, UNDER_WAY, Status

if TYPE_CHECKING:
    from txpool.characteristics import Characteristics
    from txpool.tm.transaction import Transaction


def enlist(transaction: Transaction, resource: Resource) -> Work:
    """As `Transaction.enlist`."""
    if not isinstance(resource, Resource):
        raise ProgrammingError(
            f"{transaction.gtrid} cannot enlist {resource!r}: it is no txpool.resource.Resource. A file's is what "
            "txpool.resource.find(path) returns, and a database's connections enlist by themselves. Nothing was done"
        )
    if not NAME.fullmatch(resource.name):
        raise ProgrammingError(
            f"{transaction.gtrid} cannot enlist {resource!r}: its name {resource.name!r} is a part of the names of its "
            "branches, and is to be 1 to 32 of the characters A-Z a-z 0-9 _ . -. Nothing was done"
        )
    if transaction.log is None:
        from txpool.tm.subordinate import Subordinate

        why = f"what it prepares needs a decision log, by which recovery ends it after a crash. {WRITE_A_LOG}"
        if isinstance(transaction, Subordinate):
            why = "a Spark task cannot prepare there. Enlist it on the driver, in the same transaction"
        raise ProgrammingError(f"resource {resource.name} cannot join {transaction.gtrid}: {why}")
    return part_of(transaction, resource).work


def part_of(transaction: Transaction, resource: Resource) -> ResourceEnlistment:
    """The resource's enlistment in the transaction, which has one for each resource, by its name.

    ProgrammingError where another has its name.
    """
    enlistment: Any = transaction.enlist_datasource(EnlistedResource(resource))  # type: ignore[arg-type]
    if isinstance(enlistment, ResourceEnlistment) and enlistment.datasource.resource is resource:
        return enlistment
    raise ProgrammingError(
        f"{transaction.gtrid}: another resource or datasource is called {resource.name}, and a transaction knows them "
        "by their names: give each a name of its own. The transaction is as it was."
    )


class ResourceEnlistment:
    """One resource's part in one transaction: what `Enlistment` is for a datasource."""

    work: Work
    branch: ResourceBranch
    needs_decision = True

    def __init__(self, datasource: EnlistedResource, transaction: Transaction) -> None:
        self.datasource = datasource
        self._lock = transaction.new_lock()
        #: Set once the work has begun.
        self.pooled: object | None = None

    def open(self, transaction: Transaction, timeout: float | None) -> None:
        """Begin the work, unless another thread has."""
        with self._lock:
            if self.pooled is not None:
                return
            resource = self.datasource.resource
            work = resource.begin()
            work.owner = ref(transaction)
            self.work, self.branch = work, ResourceBranch(resource, work, transaction.gtrid)
            self.pooled = work
            if transaction.status is not ACTIVE and transaction.status not in UNDER_WAY:
                work.rollback()  # it has ended since this began
                transaction.require_active()

    def settled_branch(self) -> ResourceBranch:
        """Its branch, once it is open."""
        with self._lock:
            return self.branch

    def mark_unreusable(self) -> None:
        """Nothing: there is no connection that would be used again."""

    def cancel(self) -> None:
        """Nothing: what works in it looks by `require_active` whether it may go on."""

    def release(self, status: Status, *, reusable: bool) -> None:
        """Nothing: the branch has ended the work."""

    def release_left(self, *, dropped: bool = False) -> None:
        """As `release`."""


class EnlistedResource:
    """A resource as a transaction sees what takes part in it."""

    role = PREPARED
    mode = "xa"
    enlistment_class = ResourceEnlistment

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.name = resource.name
        #: For traces, and for messages.
        self.url = f"{type(resource).__name__.lower()}:{resource.name}"
        self.resource_manager = self

    def why_not_begin(self, characteristics: Characteristics) -> str:
        """As ResourceManager's."""
        return f"it is a resource of your own, and cannot begin with {characteristics}"
