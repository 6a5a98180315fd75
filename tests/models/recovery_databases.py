"""Databases and a decision log that recovery meets; each call is counted, and anything may happen before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from txpool.errors import OperationalError
from txpool.log.base import IncarnationState
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import BranchOutcome, BranchRecord, Refused, Resolution, Role
from txpool.resources.recovery_access import BranchRecovery, MarkedRow, PreparedBranch, XidsTable
from txpool.xid import Xid

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

    def aborted(self) -> set[str]:
        self.calls.hit("aborted")
        return super().aborted()

    def abort(self, gtrid: str) -> Resolution:
        self.calls.hit("abort")
        return super().abort(gtrid)

    def purge(self, gtrids: Iterable[str]) -> None:
        self.calls.hit("purge")
        super().purge(gtrids)


class ModelDatabase:
    """A database that prepares, and keeps its word."""

    mode = "xa"
    role = Role.PREPARED

    def __init__(self, name: str, calls: Calls) -> None:
        self.name = name
        self.calls = calls
        self.server = f"server-of-{name}"
        #: Another one where it has failed over, or was restored.
        self.generation = "1"
        #: Whether it can tell how a branch has ended that is gone.
        self.tells = True
        self.reachable = True
        self.silent = False  #: lists, and does not answer to commit or rollback
        self.prepared: dict[Xid, float] = {}
        #: What somebody else has prepared, and the roles that may have.
        self.forged: dict[Xid, frozenset[str]] = {}
        self.ended: dict[Xid, BranchOutcome] = {}

    def branch_recovery(self) -> BranchRecovery:
        return self

    def staging(self, *, lock_timeout: float) -> None:
        return None

    def branch_rows(self, *, nodes: Collection[str], lock_timeout: float) -> None:
        return None

    def xids_table(self, *, nodes: Collection[str], lock_timeout: float) -> XidsTable:
        raise AssertionError("not a marked datasource")

    def prepare(self, xid: Xid) -> BranchRecord:
        self.prepared[xid] = 1.0
        return self.record(xid)

    def record(self, xid: Xid) -> BranchRecord:
        return BranchRecord(xid, self.name, self.server, {"xid": "7", "generation": self.generation})

    def fail_over(self, *, losing: bool) -> None:
        """A standby takes its place, which may lack what was prepared last."""
        self.generation = str(int(self.generation) + 1)
        if losing:
            self.prepared.clear()

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
        if record.identity and record.identity != self.server:
            return BranchOutcome.UNKNOWN
        if not record.identity or record.evidence.get("generation") != self.generation:
            return BranchOutcome.LOST
        told = self.ended.get(record.xid) if self.tells else None
        return BranchOutcome.ABSENT if told is None else told


class ModelLedger:
    """A marked datasource: committed rows and tombstones, and the one row whose transaction is open."""

    mode = "cmr"
    role = Role.MARKED

    def __init__(self, name: str, calls: Calls) -> None:
        self.name = name
        self.calls = calls
        self.reachable = True
        self.rows: dict[str, MarkedRow] = {}
        self.open: MarkedRow | None = None

    def branch_recovery(self) -> BranchRecovery:
        raise AssertionError("it prepares nothing")

    def staging(self, *, lock_timeout: float) -> None:
        return None

    def branch_rows(self, *, nodes: Collection[str], lock_timeout: float) -> None:
        return None

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
