"""A model of the databases that recovery meets, and of a coordinator that can be stopped between any two steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from recovery import RecoveryManager, ScanReport
from recovery.scan.datasources import RecoveryDatasources
from recovery.scan.modules import DecidedModule, MarkedModule, OrphanModule
from recovery.scan.orphans import IncarnationFilter, NodeFilter, TransactionLogFilter
from recovery.scan.reading import take_snapshot
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.report import RepeatFilter, ScanRecorder
from recovery.scan.snapshot import Snapshot
from txpool.errors import OperationalError
from txpool.log.base import IncarnationState
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import (
    BranchOutcome,
    BranchRecord,
    MarkedRow,
    PreparedBranch,
    Refused,
    ResourceManager,
    XidsTable,
)
from txpool.xid import Xid, make_gtrid, make_xid, new_incarnation

NODE = "etl-1"
#: Whom our sessions log in as.
OURS = frozenset({"app"})


class Calls:
    """Counts what recovery calls; `before` is run before each call, with its number."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.before: Callable[[int], None] = lambda number: None

    def hit(self, name: str) -> None:
        self.names.append(name)
        self.before(len(self.names) - 1)


class WatchedLog(MemoryLog):
    """A memory log whose readings can be interleaved with anything."""

    def __init__(self, disk: MemoryDisk, calls: Calls) -> None:
        super().__init__(disk, node=disk.node)
        self.calls = calls
        self.ours = frozenset({disk.node})

    def nodes(self) -> frozenset[str]:
        return self.ours

    def incarnations(self) -> dict[str, IncarnationState]:
        self.calls.hit("incarnations")
        return super().incarnations()

    def fence(self, incarnation: str) -> None:
        self.calls.hit("fence")
        super().fence(incarnation)

    def finished(self) -> set[str]:
        self.calls.hit("finished")
        return super().finished()

    def pointers(self) -> dict[str, str]:
        self.calls.hit("pointers")
        return super().pointers()

    def decisions(self):  # type: ignore[no-untyped-def]
        self.calls.hit("decisions")
        return super().decisions()

    def purge(self, gtrids: Iterable[str]) -> None:
        self.calls.hit("purge")
        super().purge(gtrids)


class ModelDatabase:
    """A database that prepares, and keeps its word."""

    mode = "xa"

    def __init__(self, name: str, calls: Calls) -> None:
        self.name = name
        self.calls = calls
        self.server = f"server-of-{name}"
        self.reachable = True
        self.silent = False  #: lists, and does not answer to commit or rollback
        self.prepared: dict[Xid, float] = {}
        #: What somebody else has prepared, and the roles that may have.
        self.forged: dict[Xid, frozenset[str]] = {}
        self.ended: dict[Xid, BranchOutcome] = {}

    def resource_manager(self) -> ResourceManager:
        return self

    def xids_table(self, *, nodes: Collection[str], lock_timeout: float) -> XidsTable:
        raise AssertionError("not a marked datasource")

    def prepare(self, xid: Xid) -> BranchRecord:
        self.prepared[xid] = 1.0
        return BranchRecord(xid, self.name, self.server, {"xid": "7"})

    def end(self, xid: Xid, answer: BranchOutcome) -> None:
        """By the coordinator, or by a person: what is not prepared any more stays as it ended."""
        if self.prepared.pop(xid, None) is not None:
            self.ended[xid] = answer

    def identity(self) -> str:
        self.calls.hit(f"{self.name}.identity")
        if not self.reachable:
            raise OperationalError(f"{self.name} is down")
        return self.server

    def recover(self) -> list[PreparedBranch]:
        self.calls.hit(f"{self.name}.recover")
        if not self.reachable:
            raise OperationalError(f"{self.name} is down")
        forged = [PreparedBranch(xid, 1.0, "mallory", roles) for xid, roles in self.forged.items()]
        return [*forged, *(PreparedBranch(xid, age, "app", OURS) for xid, age in self.prepared.items())]

    def logins(self) -> frozenset[str]:
        self.calls.hit(f"{self.name}.logins")
        return OURS

    def commit(self, record: BranchRecord) -> BranchOutcome:
        return self._finish(record, BranchOutcome.COMMITTED)

    def rollback(self, record: BranchRecord) -> BranchOutcome:
        return self._finish(record, BranchOutcome.ROLLED_BACK)

    def _finish(self, record: BranchRecord, wanted: BranchOutcome) -> BranchOutcome:
        self.calls.hit(f"{self.name}.{wanted.value}")
        if not self.reachable or self.silent or record.xid in self.forged:
            return BranchOutcome.UNKNOWN  # what is somebody else's is refused
        if record.xid in self.prepared:
            self.end(record.xid, wanted)
            return wanted
        return self.ended.get(record.xid, BranchOutcome.LOST) if record.evidence else BranchOutcome.LOST


class ModelLedger:
    """A marked datasource: committed rows and tombstones, and the one row whose transaction is open."""

    mode = "cmr"

    def __init__(self, name: str, calls: Calls) -> None:
        self.name = name
        self.calls = calls
        self.reachable = True
        self.rows: dict[str, MarkedRow] = {}
        self.open: MarkedRow | None = None

    def resource_manager(self) -> ResourceManager:
        raise AssertionError("it prepares nothing")

    def xids_table(self, *, nodes: Collection[str], lock_timeout: float) -> XidsTable:
        return self

    def mark(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        if gtrid in self.rows:
            raise Refused("a tombstone was first")
        self.open = MarkedRow(gtrid, NODE, True, tuple(branches))

    def commit(self) -> None:
        if self.open is None:
            raise Refused("its session was ended")
        self.rows[self.open.gtrid] = self.open
        self.open = None

    def read(self) -> list[MarkedRow]:
        self.calls.hit(f"{self.name}.read")
        self._reach()
        return list(self.rows.values())

    def tombstone(self, gtrid: str, identity: str = "") -> MarkedRow:
        self.calls.hit(f"{self.name}.tombstone")
        self._reach()
        if self.open is not None and self.open.gtrid == gtrid:
            raise OperationalError("lock timeout: the row's transaction is open")
        return self.rows.setdefault(gtrid, MarkedRow(gtrid, NODE, False))

    def delete(self, gtrids: Iterable[str]) -> None:
        self.calls.hit(f"{self.name}.delete")
        self._reach()
        for gtrid in gtrids:
            self.rows.pop(gtrid, None)

    def _reach(self) -> None:
        if not self.reachable:
            raise OperationalError(f"{self.name} is down")


@dataclass
class World:
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


def evidence(**known: Any) -> Snapshot:
    """What a pass knows where it has found nothing, but for what is given."""
    empty: dict[str, Any] = {
        name: {} for name in ("listings", "unanswered", "incarnations", "pointers", "decisions", "rows", "tags")
    }
    empty |= {name: frozenset() for name in ("fenced", "finished", "aborted")} | {"nodes": frozenset({NODE})}
    return Snapshot(**(empty | known))


def logged(world: World) -> Iterator[str]:
    """A coordinator that decides in the log, stopped after each step; a fenced one rolls back."""
    a, b = world.xid(world.a, 0), world.xid(world.b, 1)
    records = [world.a.prepare(a)]
    yield "a prepared"
    records.append(world.b.prepare(b))
    yield "b prepared"
    try:
        world.log.record(world.gtrid, records)
        answer = BranchOutcome.COMMITTED
    except Refused:
        answer = BranchOutcome.ROLLED_BACK
    yield "decided"
    world.a.end(a, answer)
    yield "a ended"
    world.b.end(b, answer)
    yield "b ended"
    world.log.forget(world.gtrid)
    yield "forgotten"


def unaccounted(world: World) -> Iterator[str]:
    """One that hears no answer of b's, marks the transaction finished, and lives on."""
    a, b = world.xid(world.a, 0), world.xid(world.b, 1)
    records = [world.a.prepare(a), world.b.prepare(b)]
    yield "prepared"
    try:
        world.log.record(world.gtrid, records)
        answer = BranchOutcome.COMMITTED
    except Refused:
        answer = BranchOutcome.ROLLED_BACK
    yield "decided"
    world.a.end(a, answer)
    yield "a ended"
    world.log.finish(world.gtrid)
    yield "finished"


def marked(world: World) -> Iterator[str]:
    """A coordinator whose decision is a marked row."""
    a, b = world.xid(world.a, 0, marked=True), world.xid(world.b, 1, marked=True)
    records = [BranchRecord(a, "a", world.a.server), BranchRecord(b, "b", world.b.server)]
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
    world.a.end(a, answer)
    yield "a ended"
    world.b.end(b, answer)
    yield "b ended"
    if answer is BranchOutcome.COMMITTED:
        world.ledger.rows.pop(world.gtrid, None)
    yield "forgotten"


def pointed(world: World) -> Iterator[str]:
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
    world.a.end(a, answer)
    yield "a ended"
    world.b.end(b, answer)
    yield "b ended"


def world_after(steps: Callable[[World], Iterator[str]], last: str, *, dead: bool = True) -> World:
    """A world in which a coordinator has come as far as the step called `last`."""
    world = World()
    for step in steps(world):
        if step == last:
            break
    else:
        raise AssertionError(last)
    if dead:
        world.die()
    return world
