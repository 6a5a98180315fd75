"""Rule 38: age tells when to look at a living process's transaction, and when to try to end it; never its outcome."""

from __future__ import annotations

from math import inf

import pytest

from recovery.cli import ExitCode, _exit_code
from recovery.scan.snapshot import MARGIN_SECONDS
from tests.models.recovery import RecoveryWorld
from txpool.log.base import IncarnationState
from txpool.resources.base import BranchRecord
from txpool.xid import Xid

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


def test_38_a_decided_one_that_hangs_is_an_alarm_too(world: RecoveryWorld) -> None:
    world.log.record(world.gtrid, [world.a.record(xids(world)[0]), world.b.record(xids(world)[1])])
    assert [alarm.kind for alarm in world.scan().alarms] == ["overdue"]
    world.disk.states[world.incarnation] = IncarnationState.DEAD
    assert len(world.scan().committed) == 2
