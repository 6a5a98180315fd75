"""Over any snapshot, a recovery that looks at a window at a time does exactly what one does that looks at the whole."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import inf
from operator import itemgetter
from typing import Any

import pytest

from recovery import RecoveryManager
from recovery.operator.packing import order
from recovery.orphans import Ballot, Vote
from recovery.scan.snapshot import Snapshot
from tests.crash.evidence import SEED
from tests.models.recovery_databases import NODE, OURS, Calls, ModelDatabase, ModelLedger, WatchedLog
from txpool import packed
from txpool.config.settings import RecoverySettings
from txpool.log.base import Decision, Heuristic, IncarnationState, SideRecord
from txpool.log.memory import MemoryDisk
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.recovery_access import MarkedRow, PreparedBranch
from txpool.tm.commit.annotations import NOTE
from txpool.xid import TaskName, Xid, make_gtrid, make_xid

OTHER_NODE = "etl-2"
NOW = 1_000_000.0
SEEDS = range(8)


@dataclass(frozen=True)
class Table:
    gtrid: str
    name: str


class Area:
    """Staging tables of one database."""

    def __init__(self) -> None:
        self.here: list[Table] = []

    def tables(self) -> list[Table]:
        return list(self.here)

    def drop(self, table: Table) -> None:
        if table.gtrid.endswith("3"):
            raise RuntimeError("locked")
        self.here = [each for each in self.here if each != table]


class Rows:
    """Rows of branches that have committed."""

    def __init__(self) -> None:
        self.here: list[Xid] = []

    def xids(self) -> list[Xid]:
        return list(self.here)

    def delete(self, gtrids: Collection[str]) -> None:
        self.here = [xid for xid in self.here if xid.joined not in gtrids]


class Database(ModelDatabase):
    """One with staging tables, rows and branches in another database of its server; some branches it keeps."""

    def __init__(self, name: str, calls: Calls, area: Area, rows: Rows | None) -> None:
        super().__init__(name, calls)
        self.area, self.rows = area, rows
        self.elsewhere: list[Xid] = []
        self.kept: set[Xid] = set()
        self.ages: dict[Xid, float | None] = {}

    def staging(self, *, lock_timeout: float) -> Any:
        return self.area

    def branch_rows(self, *, nodes: Collection[str], lock_timeout: float) -> Any:
        return self.rows

    def recover(self) -> list[PreparedBranch]:
        super().recover()
        found = [PreparedBranch(xid, 1.0, "mallory", roles) for xid, roles in self.forged.items()]
        found += [PreparedBranch(xid, self.ages.get(xid), "app", OURS) for xid in self.prepared]
        found += [PreparedBranch(xid, 2.0, "app", OURS, "server-of-x", "x") for xid in self.elsewhere]
        return sorted(found, key=lambda each: each.xid)

    def _finish(self, record: BranchRecord, wanted: BranchOutcome) -> BranchOutcome:
        return BranchOutcome.UNKNOWN if record.xid in self.kept else super()._finish(record, wanted)


class Reason(StrEnum):
    """Reasons as a user may have them."""

    THEIRS = "a user's reason"


class Voter:
    """A user's filter, which leaves some alone, and fails for others."""

    def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None:
        if xid.gtrid.endswith("7"):
            raise RuntimeError("no vote")
        return Ballot(Vote.LEAVE_ALONE, Reason.THEIRS) if xid.gtrid.endswith("5") else None


class Greedy:
    def expires(self, entry: object, age: float, interval: float) -> bool:
        return True


class World:
    """Many transactions, each with anything that the log and the databases may have of it; the same for a seed."""

    def __init__(self, seed: str) -> None:
        self.dice = random.Random(seed)
        self.disk = MemoryDisk(NODE)
        calls = Calls()
        self.log = WatchedLog(self.disk, calls)
        area = Area()
        self.a = Database("a", calls, area, Rows())
        self.b = Database("b", calls, Area(), None)
        self.twin = Database("twin", calls, area, None)  # leads to the database of a
        self.twin.prepared, self.twin.ended, self.twin.server = self.a.prepared, self.a.ended, self.a.server
        self.c = Database("c", calls, Area(), Rows())
        self.databases = [self.a, self.b, self.twin, self.c]
        self.ledgers = [ModelLedger("ledger", calls), ModelLedger("other", calls)]
        self.alive, *named = (self._incarnation() for _ in range(6))
        states = [*IncarnationState, IncarnationState.DEAD]
        self.disk.states.update(zip([self.alive, *named], [IncarnationState.ALIVE, *states], strict=False))
        self.disk.expired.add(expired := self._incarnation())
        unknown = self._incarnation()
        for incarnation in (self.alive, *named):
            if self.flip(0.6):
                self.log.note_timeout(make_gtrid(NODE, incarnation, 0), self.dice.choice([1.0, 60.0, inf]))
        names = [self.alive, *named, expired, unknown]
        for number in range(self.dice.randint(20, 60)):
            node = OTHER_NODE if self.flip(0.05) else NODE
            self._transaction(make_gtrid(node, self.dice.choice(names), number))
        self.c.reachable = self.flip(0.7)
        self.b.silent = self.flip(0.1)
        self.ledgers[1].reachable = self.flip(0.8)
        self.suspended = self.flip(0.05)
        if self.suspended:
            self.manager().suspend("a reason")

    def flip(self, share: float) -> bool:
        return self.dice.random() < share

    def _incarnation(self) -> str:
        return "".join(self.dice.choices("0123456789abcdefghijklmnopqrstuvwxyz", k=12))

    def _transaction(self, gtrid: str) -> None:
        decider = self.dice.choice([None, None, "ledger", "other", "gone"])
        records = []
        for number in range(self.dice.randint(0, 4)):
            database = self.dice.choice(self.databases)
            its = self.dice.choice([decider] * 9 + [None])
            task = TaskName(1, number, number, 1) if self.flip(0.2) else None
            xid = make_xid(gtrid, number, database.name, its, task=task)
            record = database.record(xid)
            if self.flip(0.1):
                record = BranchRecord(xid, self.dice.choice(["a", "nowhere"]), self.dice.choice(["", "server-of-z"]))
            self._branch(database, xid)
            records.append(record)
        named = tuple(each for each in records if self.flip(0.9))
        self._recorded(gtrid, named)
        if self.flip(0.15):
            self.disk.finished.add(gtrid)
        if self.flip(0.1):
            self.disk.pointers[gtrid] = self.dice.choice(["ledger", "other", "gone"])
        for ledger in self.ledgers:
            if self.flip(0.12):
                ledger.rows[gtrid] = MarkedRow(gtrid, NODE, self.flip(0.6), named)
        if self.flip(0.1):
            for each in records[:2] or [BranchRecord(Xid(gtrid, ""), "a")]:
                bqual = "" if self.flip(0.2) else each.xid.bqual
                ended = self.dice.choice(["committed", "rolled back", "lost"])
                kept = Heuristic(gtrid, bqual, "a", self.dice.choice(["commit", "rollback"]), ended, NOW - 7)
                self.disk.heuristics[gtrid, bqual] = kept
            self.disk.side_records[NOTE, gtrid] = SideRecord(NOTE, gtrid, f"note of {gtrid}", NOW)
        if self.flip(0.2):
            self.dice.choice(self.databases).area.here.append(Table(gtrid, f"staged_{gtrid}"))
        if self.flip(0.05):
            self.dice.choice(self.databases).area.here.append(Table(gtrid, f"more_{gtrid}"))

    def _branch(self, database: Database, xid: Xid) -> None:
        fate = self.dice.choice(["prepared"] * 6 + ["committed", "rolled back", "gone", "forged", "elsewhere", "kept"])
        if fate in ("prepared", "kept"):
            database.prepared[xid] = 1.0
            database.ages[xid] = self.dice.choice([None, 1.0, 100.0])
        if fate == "kept":
            database.kept.add(xid)
        if fate == "forged":
            database.forged[xid] = frozenset({"mallory"})
        if fate == "elsewhere":
            database.elsewhere.append(xid)
        if fate in ("committed", "rolled back"):
            database.ended[xid] = BranchOutcome(fate)
        if database.rows is not None and self.flip(0.3):
            database.rows.here.append(xid)

    def _recorded(self, gtrid: str, named: tuple[BranchRecord, ...]) -> None:
        kind = self.dice.choice(["decision", "decision", "abort", "last", "", "", ""])
        if kind:
            what = Decision(gtrid, named, NOW - 5) if kind == "decision" else "ledger" if kind == "last" else None
            self.disk.outcomes[gtrid] = what

    def manager(self) -> RecoveryManager:
        settings = RecoverySettings.load(None, recovery_overdue_rollback=1.0, alarm_in_doubt=50.0)
        return RecoveryManager(
            settings,
            log=self.log,
            datasources=[*self.databases, *self.ledgers],
            backoff=0,
            filters=[Voter()],
            scanners=[Greedy()],
        )

    def heal(self) -> None:
        """The living process dies, and all databases answer."""
        self.disk.states[self.alive] = IncarnationState.DEAD
        self.b.silent, self.c.reachable, self.ledgers[1].reachable = False, True, True
        for each in self.databases:
            each.kept.clear()

    def state(self) -> dict[str, Any]:
        disk = self.disk
        found: dict[str, Any] = {each.name: (each.prepared.copy(), each.ended.copy()) for each in self.databases}
        found |= {f"{each.name} rows": each.rows and list(each.rows.here) for each in self.databases}
        found |= {f"{each.name} staged": each.area.tables() for each in self.databases}
        found |= {each.name: dict(sorted(each.rows.items())) for each in self.ledgers}
        found |= {"outcomes": disk.outcomes.copy(), "states": disk.states.copy(), "expired": set(disk.expired)}
        found |= {"finished": set(disk.finished), "pointers": disk.pointers.copy()}
        return found | {"heuristics": disk.heuristics.copy(), "side": _texts(disk)}


def _texts(disk: MemoryDisk) -> dict[tuple[str, str], list[str]]:
    """A text may name transactions in another order."""
    return {key: sorted(record.text) for key, record in disk.side_records.items() if record.kind != "audit"}


def _unordered(report: dict[str, Any]) -> dict[str, Any]:
    return {
        name: sorted(map(json.dumps, value)) if isinstance(value, (list, tuple)) else value
        for name, value in report.items()
    }


def played(seed: str) -> list[tuple[str, Any]]:
    """What recovery does, says and lists, step by step."""
    world = World(seed)
    manager = world.manager()
    found: list[tuple[str, Any]] = []

    def look(step: str) -> None:
        found.append((f"{step}: list", [each.as_dict() for each in manager.in_doubt()]))
        found.append((f"{step}: each", [each.as_dict() for each in manager.each_in_doubt()]))
        found.append((f"{step}: state", world.state()))

    look("before")
    for step in ("scan", "again", "healed", "healed again"):
        if step == "healed":
            world.heal()
            if world.suspended:
                manager.resume()
        report = manager.scan()
        found.append((f"{step}: alarms", sorted((each.kind, each.subject, each.text) for each in report.alarms)))
        found.append((f"{step}: report", _unordered(replace(report, alarms=()).as_dict())))
        overview = manager.last_scan.overview
        assert overview is not None
        found.append((f"{step}: overview", sorted(overview.as_dict()["in_doubt"], key=itemgetter("gtrid"))))
        keys = [order(each) for each in overview.in_doubt]
        assert keys == sorted(keys)
        found.append((f"{step}: tally", asdict(overview.tally)))
        found.append((f"{step}: datasources", overview.datasources))
        look(step)
    return found


@pytest.mark.parametrize("number", SEEDS)
def test_what_is_done_in_windows_is_what_is_done_at_once(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = f"{SEED} windows {number}"
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(time, "monotonic", lambda: NOW)
    whole = played(seed)
    dice = random.Random(seed)
    monkeypatch.setattr(packed, "FEW", dice.choice([1, 3, 6, 20]))
    monkeypatch.setattr(packed, "BLOCK", dice.choice([1, 2, 5, 30]))
    for (step, expected), (_, done) in zip(whole, played(seed), strict=True):
        assert done == expected, (seed, step)
