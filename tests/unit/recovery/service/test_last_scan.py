"""What is kept of a scan to be looked at; and alarms: news when they come and when they go, and else silence."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from recovery import RecoveryManager
from recovery.cli import ExitCode, _exit_code
from recovery.operator.alarms import Alarms
from recovery.operator.listing import BranchState, InDoubt
from recovery.operator.next_step import OVER
from recovery.scan.report import AlarmKind, ScanReport
from tests.models.recovery import RecoveryWorld, logged, marked, snapshot_with, unaccounted, world_after
from txpool.config.settings import RecoverySettings
from txpool.metrics import catalogue, collect
from txpool.resources.base import BranchOutcome
from txpool.resources.recovery_access import PreparedSlots

GTRID = "txp1:etl-1:k3v9x2m7q4wd:41"
PREPARED = InDoubt(
    GTRID, "etl-1", "k3v9x2m7q4wd", "its process lives", 30.0, "undecided", "",
    (BranchState(f"{GTRID}:0:a:L", "a", "prepared"),), "leave it alone",
)  # fmt: skip


class Raised:
    """Alarms with settings of their own, and what they have said."""

    def __init__(self, caplog: pytest.LogCaptureFixture, **options: Any) -> None:
        self._alarms = Alarms(RecoverySettings.load(**options))
        self._caplog = caplog

    def said(self, *found: InDoubt, silent: Any = None, slots: Any = None) -> list[str]:
        self._caplog.clear()
        snapshot = snapshot_with(unanswered=silent or {})
        self._alarms.begin()
        self._alarms.look_at(snapshot, found)
        self._alarms.end(snapshot, slots or {})
        assert {record.levelname for record in self._caplog.records} <= {"WARNING"}
        return [record.message for record in self._caplog.records]

    @property
    def kinds(self) -> list[str]:
        return [alarm.kind for alarm in self._alarms.standing]


def test_a_name_of_another_node_is_no_alarm_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever may prepare can make one."""
    theirs = replace(PREPARED, node="etl-9", standing="it belongs to another node", age=1e9)
    assert Raised(caplog, alarm_in_doubt=20).said(theirs) == []


def test_each_alarm_is_news_once_and_once_more_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    raised = Raised(caplog, alarm_in_doubt=20, alarm_slots=0.5)
    everything: Any = {"silent": {"b": "connection refused"}, "slots": {"a": PreparedSlots(10, 5)}}
    news = raised.said(PREPARED, **everything)
    assert [text.split(":")[0] for text in news] == ["alarm, overdue", "alarm, unreachable", "alarm, slots"]
    assert GTRID in news[0]
    assert "connection refused" in news[1]
    assert raised.said(replace(PREPARED, age=31.0), **(everything | {"silent": {"b": "timed out"}})) == []
    assert raised.kinds == ["overdue", "unreachable", "slots"]
    assert sorted(raised.said()) == [
        f"the alarm is over, overdue {GTRID}",
        "the alarm is over, slots a",
        "the alarm is over, unreachable b",
    ]
    assert raised.kinds == []
    assert len(raised.said(PREPARED)) == 1


@pytest.mark.parametrize(
    ("found", "options"),
    [
        (replace(PREPARED, age=19.0), {}),
        (PREPARED, {"alarm_in_doubt": "none"}),
        (replace(PREPARED, branches=(replace(PREPARED.branches[0], state="not prepared"),)), {}),
    ],
)
def test_what_is_not_overdue_is_no_alarm(
    found: InDoubt, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert Raised(caplog, **({"alarm_in_doubt": 20} | options)).said(found) == []


def test_what_has_no_age_is_as_old_as_it_was_seen(caplog: pytest.LogCaptureFixture) -> None:
    raised = Raised(caplog, alarm_in_doubt="1ms")
    ageless = replace(PREPARED, age=None)
    assert raised.said(ageless) == []
    threading.Event().wait(0.002)
    assert len(raised.said(ageless)) == 1
    assert raised.said() == [f"the alarm is over, overdue {GTRID}"]
    assert raised.said(ageless) == []


def test_what_was_seen_only_now_is_not_overdue(caplog: pytest.LogCaptureFixture) -> None:
    """However short the limit, and however long the scan's own steps take."""
    assert Raised(caplog, alarm_in_doubt=1e-9).said(replace(PREPARED, age=None)) == []


@pytest.mark.parametrize(
    ("slots", "share", "short"),
    [
        (PreparedSlots(10, 8), 0.8, True),
        (PreparedSlots(10, 7), 0.8, False),
        (PreparedSlots(10, 10), 1, True),
        (PreparedSlots(0, 0), 0.8, True),
        (PreparedSlots(10, 10), "none", False),
    ],
)
def test_slots_run_short_by_their_share(
    slots: PreparedSlots, share: Any, short: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert bool(Raised(caplog, alarm_slots=share).said(slots={"a": slots})) == short


def test_each_alarm_has_an_exit_code() -> None:
    def code(*kinds: AlarmKind) -> ExitCode:
        alarms: Any = [type("Raised", (), {"kind": kind.value}) for kind in kinds]
        return _exit_code(ScanReport(alarms=alarms))

    assert code() is ExitCode.OK
    assert code(AlarmKind.SLOTS) is ExitCode.SLOTS
    assert code(AlarmKind.OVERDUE, AlarmKind.SLOTS) is ExitCode.OVERDUE
    assert _exit_code(ScanReport(unreachable={"a": "refused"})) is ExitCode.UNREACHABLE


# -- what a scan has left -----------------------------------------------------------------------------------------


def left(manager: RecoveryManager) -> dict[str, list[str]]:
    assert manager.last_scan.overview is not None
    return {each.gtrid: [branch.state for branch in each.branches] for each in manager.last_scan.overview.in_doubt}


def samples(manager: RecoveryManager) -> dict[Any, float]:
    return {(each.family.name, *each.labels): each.value for each in manager.last_scan.samples()}


def test_before_the_first_scan_nothing_is_known() -> None:
    world = RecoveryWorld()
    assert world.recovery.last_scan.overview is None
    assert samples(world.recovery)["txpool_recovery_scans_total", "completed"] == 0


@pytest.mark.parametrize("steps", [logged, marked])
def test_what_the_scan_has_ended_is_not_in_doubt_any_more(steps: Any) -> None:
    world = world_after(steps, "decided")
    world.scan()
    assert world.outcomes() == {"committed"}
    assert left(world.recovery) == {}
    found = samples(world.recovery)
    assert found["txpool_recovery_branches_total", "committed"] == 2
    assert found["txpool_indoubt_branches", "a"] == found["txpool_oldest_indoubt_seconds",] == 0


def test_an_orphan_takes_two_passes_and_is_gone() -> None:
    world = world_after(logged, "b prepared")
    world.scan()
    found = samples(world.recovery)
    assert found["txpool_recovery_passes_total",] == 2
    assert found["txpool_recovery_branches_total", "rolled_back"] == 2
    assert left(world.recovery) == {}


def test_an_unreachable_datasource_is_an_alarm_and_keeps_it_in_doubt() -> None:
    world = world_after(logged, "decided")
    world.b.reachable = False
    report = world.scan()
    assert [(alarm.kind, alarm.subject) for alarm in report.alarms] == [("unreachable", "b")]
    assert left(world.recovery) == {world.gtrid: ["no answer"]}
    found = samples(world.recovery)
    assert found["txpool_recovery_datasource_reachable", "b"] == 0
    assert found["txpool_recovery_datasource_reachable", "ledger"] == 1
    assert found["txpool_alarms", "unreachable"] == 1
    world.b.reachable = True
    assert world.scan().alarms == ()
    assert left(world.recovery) == {}


def test_what_ended_otherwise_is_left_for_people() -> None:
    world = world_after(logged, "decided")
    world.b.end(world.xid(world.b, 1), BranchOutcome.ROLLED_BACK)
    world.scan()
    assert left(world.recovery) == {world.gtrid: ["ended rolled back"]}
    assert world.recovery.last_scan.overview is not None
    assert [each.next for each in world.recovery.last_scan.overview.in_doubt] == [OVER]
    assert samples(world.recovery)["txpool_heuristic_transactions",] == 1
    world.scan()
    assert left(world.recovery) == {world.gtrid: ["ended rolled back"]}


def test_what_a_living_process_holds_is_there_and_wants_nobody() -> None:
    world = world_after(unaccounted, "prepared", dead=False)
    world.scan()
    assert world.recovery.last_scan.overview is not None
    (each,) = world.recovery.last_scan.overview.in_doubt
    assert not each.attention
    assert [branch.state for branch in each.branches] == ["prepared", "prepared"]
    assert samples(world.recovery)["txpool_indoubt_branches", "a"] == 1


def test_a_suspended_recovery_still_looks() -> None:
    world = world_after(logged, "b prepared")
    world.recovery.suspend("a migration")
    report = world.scan()
    assert "a migration" in report.suspended
    assert left(world.recovery) == {world.gtrid: ["prepared", "prepared"]}
    assert len(world.a.prepared) == 1


def test_the_thread_puts_its_numbers_among_the_metrics_and_takes_them_away() -> None:
    def count() -> int:
        return sum(each.family is catalogue.SCANS for each in collect())

    world = world_after(logged, "decided")
    assert count() == 0
    world.recovery.start()
    assert count() == 2
    world.recovery.stop()
    assert count() == 0


def test_a_scan_that_fails_is_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "txpool.recovery")
    world = world_after(logged, "decided")
    failed, again = threading.Event(), threading.Event()

    def fail_once(number: int) -> None:
        if world.calls.names[number] == "incarnations" and not failed.is_set():
            failed.set()
            raise OSError("the log is on a bad disk")
        if world.calls.names[number] == "purge":
            again.set()

    world.calls.before = fail_once
    manager = RecoveryManager(log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0, period=3600)
    manager.start()
    assert failed.wait(60)
    manager.scan_soon()
    assert again.wait(60)
    manager.stop()
    found = samples(manager)
    assert found["txpool_recovery_scans_total", "failed"] == found["txpool_recovery_scans_total", "completed"] == 1
    assert manager.last_scan.failure == ""


def test_a_manager_that_replaces_another_goes_on_with_its_alarms_and_totals(caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(logged, "decided")
    world.b.reachable = False
    world.scan()
    fresh = world.recoverer()
    fresh.last_scan.continue_from(world.recovery.last_scan)
    assert left(fresh) == {world.gtrid: ["no answer"]}
    caplog.clear()
    fresh.scan()
    assert "alarm" not in caplog.text
    assert samples(fresh)["txpool_recovery_scans_total", "completed"] == 2
    world.b.reachable = True
    fresh.scan()
    assert "the alarm is over, unreachable b" in caplog.text
