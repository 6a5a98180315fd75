"""Very many transactions in doubt: a pass looks at a window of them at a time, and does as with all at once."""

from __future__ import annotations

import gc
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import RecoveryManager
from recovery.operator import display, streams
from recovery.operator.listing import InDoubt
from recovery.scan.datasources.datasources import ListedBranch, RecoveryDatasources
from recovery.scan.reading import take_snapshot
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.report import Ended, LeftAlone, ScanReport
from recovery.scan.windows import windows
from recovery.service.page import page
from recovery.service.status import _part_response
from tests.crash.evidence import SEED
from tests.models.recovery import RecoveryWorld
from tests.models.recovery_databases import NODE, Calls, ModelDatabase
from txpool import packed
from txpool.log import open_log
from txpool.log.base import Decision, DecisionLog
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.recovery_access import PreparedBranch
from txpool.xid import make_gtrid, make_xid


class Many(ModelDatabase):
    """A database that lists its branches one after the other."""

    def each_prepared(self) -> Iterator[PreparedBranch]:
        for xid in [*self.prepared]:
            yield PreparedBranch(xid, 1.0)


def log_of(folder: Path, count: int, decided: bool) -> tuple[DecisionLog, list[str]]:
    """A log in a folder with the transactions of a process that is gone."""
    url = f"sqlite:///{folder / 'txlog'}"
    former = open_log(url, node=NODE, create=True)
    gtrids = [make_gtrid(NODE, former.incarnation, number) for number in range(count)]
    if decided:
        for gtrid in gtrids:
            former.record(gtrid, [BranchRecord(make_xid(gtrid, 0, "a"), "a")])
    former.close()
    return open_log(url, node=NODE), gtrids


class Alive:
    """How many of these things live, at most, while a pass goes through its windows."""

    KINDS = (ListedBranch, PreparedBranch, Decision, BranchRecord, InDoubt, Ended, LeftAlone)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most: Counter[str] = Counter()
        run = RecoveryPass.start_commit, RecoveryPass.leave_alone, Many.each_prepared

        def start_commit(this: RecoveryPass, *arguments: Any) -> Any:
            self.look()
            return run[0](this, *arguments)

        def leave_alone(this: RecoveryPass, *arguments: Any, **options: Any) -> None:
            self.look()
            run[1](this, *arguments, **options)

        def each_prepared(this: Many) -> Iterator[PreparedBranch]:
            for each in run[2](this):
                self.look()
                yield each

        monkeypatch.setattr(RecoveryPass, "start_commit", start_commit)
        monkeypatch.setattr(RecoveryPass, "leave_alone", leave_alone)
        monkeypatch.setattr(Many, "each_prepared", each_prepared)
        self._looks = 0

    def look(self) -> None:
        self._looks += 1
        if self._looks % 10 == 0:
            alive = Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, self.KINDS))
            self.most |= alive


@pytest.mark.parametrize("decided", [True, False], ids=["decided", "undecided"])
def test_what_is_in_memory_does_not_grow_with_the_number(
    decided: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "FEW", 20)
    monkeypatch.setattr(packed, "BLOCK", 5)
    most = []
    for count in (100, 400):
        (tmp_path / str(count)).mkdir()
        log, gtrids = log_of(tmp_path / str(count), count, decided)
        database: Any = Many("a", Calls())
        database.prepared = {make_xid(gtrid, 0, "a"): None for gtrid in gtrids}
        manager = RecoveryManager(log=log, datasources=[database], backoff=0)
        with monkeypatch.context() as watching:
            alive = Alive(watching)
            report = manager.scan()
            listed = 0
            for _ in manager.each_in_doubt():
                listed += 1
                alive.look()
            alive.look()
        assert len(report.committed if decided else report.rolled_back) == count
        assert not database.prepared
        assert listed == 0
        most.append(alive.most)
        log.close()
    assert sum(most[1].values()) < 1.3 * sum(most[0].values()) + 50, most


def a_mixed_world(count: int) -> RecoveryWorld:
    """A living and a dead process; each transaction of theirs is in another state."""
    world = RecoveryWorld()
    dice = random.Random(f"{SEED} mixed")
    for number in range(count):
        world.gtrid = make_gtrid(NODE, world.incarnation, number)
        a, b = world.xid(world.a, 0), world.xid(world.b, 1)
        records = [world.a.record(a), world.b.record(b)]
        state = dice.choice(["decided", "half", "undecided", "marked", "aborted", "finished", "pointed", "heuristic"])
        if state == "marked":
            a, b = world.xid(world.a, 0, marked=True), world.xid(world.b, 1, marked=True)
            world.ledger.mark(world.gtrid, [world.a.record(a), world.b.record(b)])
            world.ledger.commit()
        for xid in (a, b):
            (world.a if xid == a else world.b).prepare(xid)
        if state in ("decided", "half", "heuristic"):
            world.log.record(world.gtrid, records)
        if state == "half":
            world.b.end(b, BranchOutcome.COMMITTED)
        if state == "heuristic":
            world.b.end(b, BranchOutcome.ROLLED_BACK)
        if state == "aborted":
            world.log.abort(world.gtrid)
        if state == "finished":
            world.log.finish(world.gtrid)
        if state == "pointed":
            world.log.point(world.gtrid, "ledger")
    return world


@pytest.fixture(params=["whole", "windows"])
def in_windows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "windows":
        monkeypatch.setattr(packed, "FEW", 6)
        monkeypatch.setattr(packed, "BLOCK", 2)
    return bool(request.param == "windows")


def test_each_transaction_is_in_one_window_as_it_is_in_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_mixed_world(60)
    sites: Any = RecoveryDatasources([world.a, world.b, world.ledger], nodes=[NODE], lock_timeout=1)
    whole = take_snapshot(world.log, sites, fence=False)
    monkeypatch.setattr(packed, "FEW", 6)
    monkeypatch.setattr(packed, "BLOCK", 2)
    again = take_snapshot(world.log, sites, fence=False)
    seen: list[str] = []
    for window in windows(again):
        part = window.snapshot
        assert len(part.gtrids) < 10
        seen += part.gtrids
        for gtrid in part.gtrids:
            assert [*part.listed_branches(gtrid)] == [*whole.listed_branches(gtrid)]
            assert part.decisions.get(gtrid) == whole.decisions.get(gtrid)
            assert part.coordinator_state(gtrid) is whole.coordinator_state(gtrid)
            assert part.marked_by(gtrid) == whole.marked_by(gtrid)
            assert part.row(gtrid) == whole.row(gtrid)
            assert part.heuristics_of(gtrid) == whole.heuristics_of(gtrid)
    assert seen == sorted(whole.gtrids)
    assert len(seen) == 60


def test_a_scan_does_in_windows_what_it_does_at_once(in_windows: bool) -> None:
    world = a_mixed_world(60)
    listed = {each.gtrid: each for each in world.recovery.in_doubt()}
    assert len(listed) == 60
    alive = world.scan()
    left = len(alive.left_alone)
    world.die()
    world.scan()
    again = world.scan()
    overview = world.recovery.last_scan.overview
    assert overview is not None
    outcomes = {
        (database.name, xid.bqual, xid.gtrid.rpartition(":")[2]): outcome.value
        for database in (world.a, world.b)
        for xid, outcome in database.ended.items()
    }
    dice = random.Random(f"{SEED} mixed")
    states = [
        dice.choice(["decided", "half", "undecided", "marked", "aborted", "finished", "pointed", "heuristic"])
        for _ in range(60)
    ]
    for number, state in enumerate(states):
        ends = [end for (_, _, its), end in outcomes.items() if its == f"{number:x}"]
        commits = state in ("decided", "half", "marked")
        expected = ["committed"] * 2 if commits else ["rolled back"] * 2
        assert sorted(ends) == (["committed", "rolled back"] if state == "heuristic" else expected), state
    heuristic = states.count("heuristic")
    assert (len(overview.in_doubt), overview.tally.heuristic) == (heuristic, heuristic)
    assert not again.committed
    assert not world.disk.outcomes
    assert not world.ledger.rows
    assert not world.disk.pointers
    assert left > 0


def test_the_total_is_known_before_the_first_window_ends(in_windows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_mixed_world(60)
    world.die()
    totals: list[tuple[int, int]] = []
    finish = RecoveryPass._finish_commit

    def note(this: RecoveryPass, *arguments: Any) -> bool:
        if arguments[2] == "decided in the log":
            totals.append((this.progress.ended, this.progress.total))
        return finish(this, *arguments)

    monkeypatch.setattr(RecoveryPass, "_finish_commit", note)
    world.scan()
    decided = len(totals)
    assert decided > 20
    assert all(decided <= total for _, total in totals)
    assert all(ended < total for ended, total in totals)


def test_a_list_in_windows_has_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_mixed_world(60)
    dead = make_gtrid(NODE, world.incarnation, 1_000)
    world.b.forged = {make_xid(make_gtrid(NODE, world.incarnation, n), 0, "b"): frozenset({"x"}) for n in (5_000, 6)}
    world.b.forged[make_xid(dead, 0, "b")] = frozenset({"x"})
    world.die()
    world.scan()
    world.a.prepare(make_xid(make_gtrid(NODE, world.incarnation, 7_000), 0, "a"))
    at_once = [each.gtrid for each in world.recovery.in_doubt()]
    monkeypatch.setattr(packed, "FEW", 6)
    monkeypatch.setattr(packed, "BLOCK", 2)
    assert [each.gtrid for each in world.recovery.in_doubt()] == at_once


def test_a_report_of_very_many_is_the_same_in_json(capsys: pytest.CaptureFixture[str], in_windows: bool) -> None:
    world = a_mixed_world(60)
    world.die()
    report = world.scan()
    assert isinstance(report, ScanReport)
    streams.write_json(report)
    printed = capsys.readouterr().out
    assert printed == json.dumps(report.as_dict(), indent=2) + "\n"
    assert isinstance(report.rolled_back, packed.Packed) is in_windows
    assert len("\n".join(display.report_texts(report)).splitlines()) > 60


def test_the_parts_of_the_page_are_one_list(in_windows: bool) -> None:
    world = a_mixed_world(60)
    world.scan()
    standing = world.recovery.last_scan.standing
    assert standing.overview is not None
    whole = [each.as_dict() for each in standing.overview.in_doubt]
    found = []
    for first in range(0, 60, 7):
        part = json.loads(_part_response(standing.overview, f"from={first}&limit=7").body)
        assert (part["total"], part["at"]) == (len(whole), standing.overview.at)
        found += part["in_doubt"]
    assert found == json.loads(json.dumps(whole))
    ages = [each["age"] for each in whole]
    assert ages == sorted(ages, reverse=True)
    text = page(standing, title="t", period=1.0, pools=(), acts=False)
    shown = text.count('<button class="copy"')
    assert shown == min(len(whole), 50)
