"""How a resource of a user's own takes part in a transaction: `tx.enlist(resource)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.errors import ProgrammingError
from txpool.resources.base import PREPARED
from txpool.resources.own.awaited import Waits
from txpool.resources.own.branch import ResourceBranch, begin_work
from txpool.resources.own.resource import NAME, Resource, Work
from txpool.tm.enlistment import Part
from txpool.tm.rules.enlistment import WRITE_A_LOG

if TYPE_CHECKING:
    from txpool.sql.characteristics import Characteristics
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
    enlistment = transaction.enlist_datasource(OwnSource(resource))
    if isinstance(enlistment.datasource, OwnSource) and enlistment.datasource.resource is resource:
        work: Work = enlistment.pooled
        return work
    raise ProgrammingError(
        f"{transaction.gtrid}: another resource or datasource is called {resource.name}, and a transaction knows them "
        "by their names: give each a name of its own. The transaction is as it was."
    )


class OwnSource:
    """A resource of a user's own, as what takes part in a transaction."""

    role = PREPARED
    mode = "xa"
    names_early = False
    enlistment_class = Part

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.name = resource.name
        self.url = f"{type(resource).__name__.lower()}:{resource.name}"

    def why_not_begin(self, characteristics: Characteristics) -> str:
        return f"it is a resource of your own, and cannot begin with {characteristics}"

    def begin(self, transaction: Transaction, timeout: float | None) -> tuple[Work, ResourceBranch]:
        waits = Waits(transaction.deadlines)
        transaction.on_cancel(waits.cancel)
        return begin_work(self.resource, transaction.gtrid, waits)
