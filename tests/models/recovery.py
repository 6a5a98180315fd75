"""A model of what recovery meets, and of a coordinator that can be stopped between any two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from recovery import RecoveryManager, ScanReport
from recovery.scan.datasources.datasources import ListedBranch, Listing, RecoveryDatasources
from recovery.scan.modules.orphans import IncarnationFilter, NodeFilter, TransactionLogFilter
from recovery.scan.modules.transactions import DecidedModule, MarkedModule, OrphanModule
from recovery.scan.reading import take_snapshot
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.report import RepeatFilter, ScanRecorder
from recovery.scan.snapshot import Snapshot
from tests.models.recovery_databases import NODE, Calls, ModelDatabase, ModelLedger, WatchedLog
from txpool.log.base import IncarnationState
from txpool.log.memory import MemoryDisk
from txpool.resources.base import (
    BranchOutcome,
    BranchRecord,
    Refused,
)
from txpool.xid import Xid, make_gtrid, make_xid, new_incarnation


@dataclass
class RecoveryWorld:
    """One node's log and databases, and one transaction in them."""

    calls: Calls = field(default_factory=Calls)

    def __post_init__(self) -> None:
        self.disk = MemoryDisk(NODE)
        self.incarnation = new_incarnation()
        self.disk.states[self.incarnation] = IncarnationState.ALIVE
        self.log = WatchedLog(self.disk, self.calls)
        self.a = ModelDatabase("a", self.calls)
        self.b = ModelDatabase("b", self.calls)
        self.ledger = ModelLedger("ledger", self.calls)
        self.gtrid = make_gtrid(NODE, self.incarnation, 1)
        self.recovery = self.recoverer()

    def recoverer(self) -> RecoveryManager:
        return RecoveryManager(log=self.log, datasources=[self.a, self.b, self.ledger], backoff=0)

    def scan(self) -> ScanReport:
        return self.recovery.scan()

    def one_pass(self) -> None:
        """A single pass, to which every branch is one that the pass before has found: each must be right by itself."""
        xids = [self.xid(d, n, marked=m) for n, d in enumerate((self.a, self.b)) for m in (False, True)]
        filters = (IncarnationFilter(), TransactionLogFilter(), NodeFilter())
        account = ScanRecorder(RepeatFilter())
        sites = RecoveryDatasources([self.a, self.b, self.ledger], nodes=[NODE], lock_timeout=1)
        work = RecoveryPass(take_snapshot(self.log, sites), self.log, sites, account)
        for module in (MarkedModule(), DecidedModule(), OrphanModule(filters, xids)):
            module.run(work)
        assert not account.errors

    def xid(self, database: ModelDatabase, number: int = 0, *, marked: bool = False) -> Xid:
        return make_xid(self.gtrid, number, database.name, decider="ledger" if marked else None)

    def die(self) -> None:
        """The process is gone; its open sessions go with it."""
        self.ledger.open = None
        self.lose()

    def lose(self) -> None:
        """Its lock is lost, and the process goes on."""
        if self.disk.states.get(self.incarnation) is IncarnationState.ALIVE:
            self.disk.states[self.incarnation] = IncarnationState.DEAD

    def outcomes(self) -> set[str]:
        """How the branches have ended, in the databases' own words."""
        rows = {"committed" if row.committed else "" for row in self.ledger.rows.values()} - {""}
        return rows | {answer.value for database in (self.a, self.b) for answer in database.ended.values()}

    def is_clean(self) -> bool:
        return not (
            self.a.prepared
            or self.b.prepared
            or self.ledger.rows
            or self.disk.outcomes
            or self.disk.pointers
            or self.disk.finished
        )


def snapshot_with(**known: Any) -> Snapshot:
    """What a pass knows where it has found nothing, but for what is given."""
    empty: dict[str, Any] = {
        name: {} for name in ("listings", "unanswered", "incarnations", "pointers", "decisions", "rows", "tags")
    }
    empty |= {name: frozenset() for name in ("fenced", "finished", "aborted")} | {"nodes": frozenset({NODE})}
    return Snapshot(**(empty | known))


def snapshot_of(xid: Xid, state: IncarnationState | None, **known: object) -> Snapshot:
    """A pass that has found this branch, and its coordinator in this state."""
    found: dict[str, object] = {
        "listings": {"a": Listing("", (ListedBranch(xid, "a", ""),))},
        "incarnations": {xid.incarnation: state} if state else {},
        "fenced": frozenset({xid.incarnation} if state is IncarnationState.FENCED else ()),
    }
    return snapshot_with(**(found | known))


def _decided_in_log(world: RecoveryWorld, records: list[BranchRecord]) -> BranchOutcome:
    """How the branches are to end: a fenced coordinator's decision is refused."""
    try:
        world.log.record(world.gtrid, records)
    except Refused:
        return BranchOutcome.ROLLED_BACK
    return BranchOutcome.COMMITTED


def _ended(world: RecoveryWorld, a: Xid, b: Xid, outcome: BranchOutcome) -> Iterator[str]:
    world.a.end(a, outcome)
    yield "a ended"
    world.b.end(b, outcome)
    yield "b ended"


def logged(world: RecoveryWorld) -> Iterator[str]:
    """A coordinator that decides in the log, stopped after each step; a fenced one rolls back."""
    a, b = world.xid(world.a, 0), world.xid(world.b, 1)
    records = [world.a.prepare(a)]
    yield "a prepared"
    records.append(world.b.prepare(b))
    yield "b prepared"
    answer = _decided_in_log(world, records)
    yield "decided"
    yield from _ended(world, a, b, answer)
    world.log.forget(world.gtrid)
    yield "forgotten"


def unaccounted(world: RecoveryWorld) -> Iterator[str]:
    """One that hears no answer of b's, marks the transaction finished, and lives on."""
    a, b = world.xid(world.a, 0), world.xid(world.b, 1)
    records = [world.a.prepare(a), world.b.prepare(b)]
    yield "prepared"
    answer = _decided_in_log(world, records)
    yield "decided"
    world.a.end(a, answer)
    yield "a ended"
    world.log.finish(world.gtrid)
    yield "finished"


def marked(world: RecoveryWorld) -> Iterator[str]:
    """A coordinator whose decision is a marked row."""
    a, b = world.xid(world.a, 0, marked=True), world.xid(world.b, 1, marked=True)
    records = [world.a.record(a), world.b.record(b)]
    answer = BranchOutcome.COMMITTED
    try:
        world.ledger.mark(world.gtrid, records)
        yield "row inserted"
        world.a.prepare(a)
        yield "a prepared"
        world.b.prepare(b)
        yield "b prepared"
        world.ledger.commit()
    except Refused:
        answer = BranchOutcome.ROLLED_BACK
    yield "decided"
    yield from _ended(world, a, b, answer)
    if answer is BranchOutcome.COMMITTED:
        world.ledger.rows.pop(world.gtrid, None)
    yield "forgotten"


def pointed(world: RecoveryWorld) -> Iterator[str]:
    """One whose branches were named, and prepared, before the marked datasource joined."""
    a, b = world.xid(world.a, 0), world.xid(world.b, 1)
    records = [world.a.prepare(a), world.b.prepare(b)]
    yield "prepared"
    answer = BranchOutcome.COMMITTED
    try:
        world.log.point(world.gtrid, "ledger")
        yield "pointed"
        world.ledger.mark(world.gtrid, records)
        if world.log.is_fenced(world.incarnation):
            world.ledger.open = None
            raise Refused("fenced")
        yield "row inserted"
        world.ledger.commit()
    except Refused:
        answer = BranchOutcome.ROLLED_BACK
    yield "decided"
    yield from _ended(world, a, b, answer)


def world_after(steps: Callable[[RecoveryWorld], Iterator[str]], last: str, *, dead: bool = True) -> RecoveryWorld:
    """A world in which a coordinator has come as far as the step called `last`."""
    world = RecoveryWorld()
    for step in steps(world):
        if step == last:
            break
    else:
        raise AssertionError(last)
    if dead:
        world.die()
    return world
