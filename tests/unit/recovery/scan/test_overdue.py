"""Rule 38: age tells when to look at a living process's transaction, and when to try to end it; never its outcome."""

from __future__ import annotations

import time
from contextlib import suppress
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from recovery import RecoveryManager
from recovery.cli import ExitCode, _exit_code
from recovery.scan import saved
from recovery.scan.modules import overdue
from recovery.scan.modules.orphans import Ballot, Vote
from recovery.scan.snapshot import MARGIN_SECONDS, Snapshot
from tests.models.recovery import RecoveryWorld, logged, marked, pointed
from txpool.config.settings import RecoverySettings
from txpool.log.base import IncarnationState
from txpool.resources.base import BranchRecord, Refused
from txpool.xid import TaskName, Xid, make_xid

TIMEOUT = 2.0
LONG = TIMEOUT + MARGIN_SECONDS + 1


@pytest.fixture
def world() -> RecoveryWorld:
    """A living process that has prepared in both databases, and has timeouts of 2 s."""
    world = RecoveryWorld()
    world.log.note_timeout(world.gtrid, TIMEOUT)
    prepare(world)
    return world


def prepare(world: RecoveryWorld, age: float = LONG) -> list[BranchRecord]:
    a, b = xids(world)
    records = [world.a.prepare(a), world.b.prepare(b)]
    world.a.prepared[a] = world.b.prepared[b] = age
    return records


def xids(world: RecoveryWorld) -> tuple[Xid, Xid]:
    return world.xid(world.a, 0), world.xid(world.b, 1)


def test_38_a_process_that_hangs_after_its_prepares_is_an_alarm(world: RecoveryWorld) -> None:
    report = world.scan()
    (alarm,) = report.alarms
    assert (alarm.kind, alarm.subject) == ("overdue", world.gtrid)
    assert f"incarnation {world.incarnation}" in alarm.text
    assert "within 2 s" in alarm.text
    assert _exit_code(report) is ExitCode.OVERDUE
    assert len(report.pending) == 2
    (found,) = world.recovery.in_doubt()
    assert found.attention
    assert "See whether it hangs" in found.next
    assert world.outcomes() == set(), "an alarm ends nothing"


@pytest.mark.parametrize("age", [0.0, TIMEOUT, TIMEOUT + MARGIN_SECONDS - 1])
def test_38_one_that_is_slow_within_its_timeout_and_the_margin_is_none(world: RecoveryWorld, age: float) -> None:
    prepare(world, age)
    report = world.scan()
    assert report.alarms == ()
    assert _exit_code(report) is ExitCode.OK
    assert not world.recovery.in_doubt()[0].attention


@pytest.mark.parametrize("noted", [(), (inf,), (TIMEOUT, inf), (TIMEOUT, 600.0)])
def test_38_the_largest_timeout_counts_and_none_is_never_overdue(noted: tuple[float, ...]) -> None:
    world = RecoveryWorld()
    for timeout in noted:
        world.log.note_timeout(world.gtrid, timeout)
    prepare(world)
    assert world.scan().alarms == ()


def test_38_a_dead_process_and_one_that_has_finished_do_not_hang(world: RecoveryWorld) -> None:
    world.log.finish(world.gtrid)
    report = world.scan()
    assert report.alarms == ()
    assert len(report.rolled_back) == 2
    prepare(world)
    world.lose()
    assert world.scan().alarms == ()


def test_38_what_has_no_age_is_as_old_as_it_was_seen(world: RecoveryWorld) -> None:
    for database in (world.a, world.b):
        database.prepared = dict.fromkeys(database.prepared)  # type: ignore[arg-type]
    assert world.scan().alarms == ()
    alarms = world.recovery.last_scan.alarms
    alarms.first_seen[world.gtrid] -= LONG
    assert [alarm.kind for alarm in world.scan().alarms] == ["overdue"]


def test_38_what_has_no_age_is_as_old_as_an_earlier_recovery_has_seen_it(
    world: RecoveryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the `scan` and the `list` of a shell, which are processes of their own."""
    for database in (world.a, world.b):
        database.prepared = dict.fromkeys(database.prepared)  # type: ignore[arg-type]
    assert world.scan().alarms == ()
    now = time.time() + LONG
    monkeypatch.setattr(saved, "time", SimpleNamespace(time=lambda: now))
    recovery = allowing(world, "none")
    assert [each.attention for each in recovery.in_doubt()] == [True]
    assert [alarm.kind for alarm in recovery.scan().alarms] == ["overdue"]
    world.log.finish(world.gtrid)
    assert len(recovery.scan().rolled_back) == 2
    assert recovery.scan().alarms == ()
    assert saved.seen_for(world.log) == {}


def test_38_nothing_is_saved_of_what_has_an_age(world: RecoveryWorld) -> None:
    assert len(world.scan().alarms) == 1
    assert saved.seen_for(world.log) == {}


def test_38_a_decided_one_that_hangs_is_an_alarm_too(world: RecoveryWorld) -> None:
    world.log.record(world.gtrid, [world.a.record(xids(world)[0]), world.b.record(xids(world)[1])])
    assert [alarm.kind for alarm in world.scan().alarms] == ["overdue"]
    world.disk.states[world.incarnation] = IncarnationState.DEAD
    assert len(world.scan().committed) == 2


# -- where it may be ended ----------------------------------------------------------------------------------------

ALLOWED = 60.0
OVERDUE = TIMEOUT + ALLOWED + 1


def allowing(world: RecoveryWorld, seconds: Any = ALLOWED, **options: Any) -> RecoveryManager:
    """A recovery that may end what is overdue."""
    settings = RecoverySettings.load(None, recovery_overdue_rollback=seconds)
    return RecoveryManager(settings, log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0, **options)


def test_38_it_is_rolled_back_by_an_abort_record_and_its_process_can_decide_nothing(
    world: RecoveryWorld, caplog: pytest.LogCaptureFixture
) -> None:
    records = prepare(world, OVERDUE)
    report = allowing(world).scan()
    assert len(report.rolled_back) == 2
    assert report.alarms == ()
    assert _exit_code(report) is ExitCode.OK
    assert world.outcomes() == {"rolled back"}
    assert f"{world.gtrid} can never commit any more" in caplog.text
    assert f"incarnation {world.incarnation} of node etl-1" in caplog.text
    with pytest.raises(Refused):
        world.log.record(world.gtrid, records)
    assert world.disk.states[world.incarnation] is IncarnationState.ALIVE


@pytest.mark.parametrize(("seconds", "age"), [(ALLOWED, OVERDUE - 2), ("none", 1e9), (1, TIMEOUT + MARGIN_SECONDS - 1)])
def test_38_it_is_not_before_that_time_and_by_default_never(world: RecoveryWorld, seconds: Any, age: float) -> None:
    prepare(world, age)
    assert allowing(world, seconds).scan().rolled_back == ()
    assert world.log.aborted() == set()


def test_38_one_without_a_timeout_is_never_rolled_back(world: RecoveryWorld) -> None:
    prepare(world, 3000.0)
    world.log.note_timeout(world.gtrid, inf)
    report = allowing(world).scan()
    assert (report.rolled_back, report.alarms, world.log.aborted()) == ((), (), set())


def test_38_what_is_decided_is_left_to_its_process(world: RecoveryWorld) -> None:
    world.log.record(world.gtrid, prepare(world, OVERDUE))
    report = allowing(world).scan()
    assert report.rolled_back == report.committed == ()
    assert [alarm.kind for alarm in report.alarms] == ["overdue"]
    assert len(world.a.prepared) == len(world.b.prepared) == 1


def test_38_what_is_decided_behind_the_reading_is_left_to_its_process(world: RecoveryWorld) -> None:
    records = prepare(world, OVERDUE)

    def decide(number: int) -> None:
        if world.calls.names[number] == "abort" and not world.log.decisions():
            world.log.record(world.gtrid, records)

    world.calls.before = decide
    assert allowing(world).scan().rolled_back == ()
    assert set(world.log.decisions()) == {world.gtrid}


@pytest.mark.parametrize("when", ["before", "incarnations", "abort"])
def test_38_beside_a_last_resource_there_is_only_the_alarm(world: RecoveryWorld, when: str) -> None:
    """However late the note comes."""
    prepare(world, OVERDUE)

    def note(number: int) -> None:
        if world.calls.names[number] == when:
            world.log.note_last(world.gtrid, "till")

    world.calls.before = note
    if when == "before":
        world.log.note_last(world.gtrid, "till")
    report = allowing(world).scan()
    assert report.rolled_back == ()
    assert world.log.aborted() == set()
    assert [alarm.kind for alarm in report.alarms] == ["overdue"]
    world.calls.before = lambda _: None
    report = allowing(world).scan()
    assert "Its last resource till may have committed" in report.alarms[0].text
    assert any("its last resource, till" in left.reason for left in report.pending)


def test_38_an_open_marked_row_is_left_alone_and_one_that_is_gone_gets_a_tombstone() -> None:
    world = RecoveryWorld()
    world.log.note_timeout(world.gtrid, TIMEOUT)
    a, b = world.xid(world.a, 0, marked=True), world.xid(world.b, 1, marked=True)
    world.ledger.mark(world.gtrid, [world.a.record(a), world.b.record(b)])
    for database, xid in ((world.a, a), (world.b, b)):
        database.prepare(xid)
        database.prepared[xid] = OVERDUE
    report = allowing(world).scan()
    assert report.rolled_back == ()
    assert any("lock timeout" in left.reason for left in report.pending)
    assert [alarm.kind for alarm in report.alarms] == ["overdue"]
    world.ledger.open = None  # its session was ended
    assert len(allowing(world).scan().rolled_back) == 2
    assert world.log.aborted() == set(), "the marked datasource decides it, and not the log"
    with pytest.raises(Refused):
        world.ledger.mark(world.gtrid, [])
    assert world.ledger.rows, "the tombstone stays for as long as its process may come back"
    world.die()
    world.scan()
    assert world.is_clean()


def test_38_a_committed_marked_row_is_left_to_its_process() -> None:
    world = RecoveryWorld()
    world.log.note_timeout(world.gtrid, TIMEOUT)
    a = world.xid(world.a, 0, marked=True)
    world.ledger.mark(world.gtrid, [world.a.prepare(a)])
    world.a.prepared[a] = OVERDUE
    world.ledger.commit()
    report = allowing(world).scan()
    assert (report.rolled_back, report.committed) == ((), ())
    assert any("has decided it" in left.reason for left in report.pending)


def test_38_filters_are_heard_before_the_abort_record(world: RecoveryWorld) -> None:
    class Keep:
        def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None:
            return Ballot(Vote.LEAVE_ALONE, "kept") if xid.tag == "b" else None

    prepare(world, OVERDUE)
    assert allowing(world, filters=[Keep()]).scan().rolled_back == ()
    assert world.log.aborted() == set()


def test_38_branches_of_spark_tasks_are_rolled_back_too(world: RecoveryWorld) -> None:
    task = make_xid(world.gtrid, 0, "a", task=TaskName(1, 2, 3, 1))
    world.a.prepare(task)
    prepare(world, OVERDUE)
    world.a.prepared[task] = OVERDUE
    assert len(allowing(world).scan().rolled_back) == 3


def test_38_an_abort_record_of_a_living_process_counts_as_finished_for_late_branches(world: RecoveryWorld) -> None:
    """Any recovery ends them, also one that may not begin with what is overdue."""
    prepare(world, 0.0)
    world.log.abort(world.gtrid)
    (found,) = world.recovery.in_doubt()
    assert found.decision == "rollback"
    assert len(world.scan().rolled_back) == 2
    world.a.prepare(world.xid(world.a, 2))
    assert len(world.scan().rolled_back) == 1
    assert world.log.aborted() == {world.gtrid}, "kept while its process may still write the decision"
    world.die()
    world.scan()
    assert world.is_clean()


@pytest.mark.parametrize("pointer", [False, True])
def test_38_an_abort_record_beside_another_decider_counts_for_nothing(world: RecoveryWorld, pointer: bool) -> None:
    if pointer:
        world.log.point(world.gtrid, "ledger")
    else:
        for database in (world.a, world.b):
            database.prepared.clear()
        world.a.prepare(world.xid(world.a, 0, marked=True))
    world.log.abort(world.gtrid)
    assert world.scan().rolled_back == ()


def test_38_an_abort_record_of_an_adopted_log_counts_for_nothing(world: RecoveryWorld) -> None:
    world.log.abort(world.gtrid)
    del world.disk.states[world.incarnation]
    assert world.scan().rolled_back == ()


@pytest.mark.parametrize("crash", range(60))
@pytest.mark.parametrize("allowed", [False, True])
def test_38_a_recovery_that_is_interrupted_at_any_call_and_another_that_goes_on(crash: int, allowed: bool) -> None:
    """The abort record is enough: the other one need not be allowed to begin with it."""
    world = RecoveryWorld()
    world.log.note_timeout(world.gtrid, TIMEOUT)
    prepare(world, OVERDUE)

    def interrupt(number: int) -> None:
        if number == crash:
            raise KeyboardInterrupt

    world.calls.before = interrupt
    with suppress(KeyboardInterrupt):
        allowing(world).scan()
    world.calls.before = lambda _: None
    aborted = bool(world.log.aborted())
    (allowing(world) if allowed else world.recovery).scan()
    assert world.outcomes() == ({"rolled back"} if allowed or aborted else set())
    assert not (aborted and (world.a.prepared or world.b.prepared))


@pytest.mark.costly
@pytest.mark.parametrize("steps", [logged, marked, pointed])
def test_38_a_coordinator_that_goes_on_between_any_two_calls(steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped after any of its steps, and goes on by any number of them at any call of recovery's."""
    monkeypatch.setattr(overdue, "MARGIN_SECONDS", 0.0)
    outcomes = set()
    for before in range(1, 7):
        for at in range(40):
            for by in (1, 2, 9):
                world = RecoveryWorld()
                world.log.note_timeout(world.gtrid, 0.0)
                running = steps(world)
                for _ in range(before):
                    next(running, None)

                def go_on(number: int) -> None:
                    if number == at:
                        for _ in range(by):
                            next(running, None)

                world.calls.before = go_on
                allowing(world, "1ms").scan()
                world.calls.before = lambda _: None
                for _ in running:
                    pass
                found = world.outcomes()
                assert len(found) < 2, f"{steps.__name__}: stopped after {before}, went on by {by} at {at}: {found}"
                outcomes |= found
                world.die()
                world.scan()
                world.scan()
                assert world.is_clean()
    # A marked row is open while it is prepared, so that recovery cannot pass.
    assert outcomes == {"committed"} if steps is marked else {"committed", "rolled back"}
