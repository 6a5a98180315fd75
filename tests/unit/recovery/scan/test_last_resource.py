"""A last resource commits before the decision, without a trace: what recovery tells of a process that died there."""

from __future__ import annotations

import pytest

from recovery import RecoveryManager
from recovery.cli import ExitCode, _exit_code
from tests.models.recovery import RecoveryWorld
from txpool.errors import LogError, ProgrammingError
from txpool.log.base import Heuristic, IncarnationState
from txpool.resources.base import BranchRecord, Refused


@pytest.fixture
def world() -> RecoveryWorld:
    """A process with a last resource, whose other branches are prepared."""
    world = RecoveryWorld()
    world.log.note_last(world.gtrid, "till")
    prepare(world)
    return world


def prepare(world: RecoveryWorld) -> list[BranchRecord]:
    return [world.a.prepare(world.xid(world.a, 0)), world.b.prepare(world.xid(world.b, 1))]


def told(world: RecoveryWorld) -> list[tuple[str, str, str, str]]:
    return [(each.bqual, each.datasource, each.decided, each.ended) for each in world.log.heuristics()]


def test_38_a_crash_beside_a_last_resource_is_a_hazard_and_the_rest_rolls_back(
    world: RecoveryWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.die()
    (found,) = world.recovery.in_doubt()
    assert found.last_resource == "till"
    assert "till may have committed" in found.next
    report = world.scan()
    assert len(report.rolled_back) == 2
    assert _exit_code(report) is ExitCode.HEURISTIC
    assert told(world) == [("", "till", "rollback", "lost")]
    assert "its last resource till may have committed before that" in caplog.text
    assert world.scan().heuristics == (), "it is news once"
    assert world.log.last_resources() == {}
    assert world.is_clean()
    assert world.recovery.forget(world.gtrid) == 1


def test_38_it_is_told_durably_before_the_first_branch_rolls_back(world: RecoveryWorld) -> None:
    world.die()
    for database in (world.a, world.b):
        database.silent = True
    world.scan()
    assert told(world) == [("", "till", "rollback", "lost")]
    assert world.log.last_resources() == {world.gtrid: "till"}, "kept until the branches are gone"
    with pytest.raises(ProgrammingError, match="has not ended"):
        world.recovery.forget(world.gtrid)


def test_38_the_note_alone_is_enough_since_others_may_have_ended_the_branches(
    world: RecoveryWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for database in (world.a, world.b):
        database.prepared.clear()
    world.die()
    (found,) = world.recovery.in_doubt()
    assert (found.last_resource, found.attention) == ("till", True)
    assert found.next.startswith("fence its dead process, then tell that its last resource till may have committed")
    report = world.scan()
    assert _exit_code(report) is ExitCode.HEURISTIC
    assert [alarm.kind for alarm in report.alarms] == ["heuristic"]
    assert report.forgotten == (world.gtrid,)
    assert told(world) == [("", "till", "rollback", "lost")]
    assert "its last resource till may have committed before that" in caplog.text
    assert world.log.last_resources() == {}
    assert world.scan().heuristics == (), "it is news once"
    assert world.recovery.forget(world.gtrid) == 1


def test_38_the_note_of_a_living_process_tells_nothing(world: RecoveryWorld) -> None:
    for database in (world.a, world.b):
        database.prepared.clear()
    assert world.recovery.in_doubt() == []
    assert _exit_code(world.scan()) is ExitCode.OK
    assert world.log.last_resources() == {world.gtrid: "till"}


def test_38_the_note_of_a_process_that_could_not_be_fenced_is_left_alone_and_shown(world: RecoveryWorld) -> None:
    for database in (world.a, world.b):
        database.prepared.clear()
    world.die()
    fence = world.log.fence

    def fail(_: str) -> None:
        raise LogError("the disk is full")

    world.log.fence = fail  # type: ignore[method-assign]
    report = world.scan()
    (left,) = report.pending
    assert left.gtrid == world.gtrid
    assert "till may have committed" in left.reason
    assert told(world) == []
    assert world.log.last_resources() == {world.gtrid: "till"}
    world.log.fence = fence  # type: ignore[method-assign]
    assert _exit_code(world.scan()) is ExitCode.HEURISTIC


def test_38_the_note_stays_while_a_database_has_not_answered_and_tells_at_once(world: RecoveryWorld) -> None:
    for database in (world.a, world.b):
        database.prepared.clear()
    world.b.reachable = False
    world.die()
    report = world.scan()
    assert [found.datasource for found in report.heuristics] == ["till"]
    assert world.log.last_resources() == {world.gtrid: "till"}
    world.b.reachable = True
    with pytest.raises(ProgrammingError, match="has not ended"):
        world.recovery.forget(world.gtrid)
    world.b.prepare(world.xid(world.b, 1))
    assert len(world.scan().rolled_back) == 1
    assert told(world) == [("", "till", "rollback", "lost")]


def test_38_a_branch_that_prepares_behind_the_listing_keeps_the_note(world: RecoveryWorld) -> None:
    """Its process prepares, commits the last resource and dies between a pass's listing and its fence."""
    for database in (world.a, world.b):
        database.prepared.clear()

    def die_late(number: int) -> None:
        if world.calls.names[number] == "incarnations" and not world.a.prepared and not world.a.ended:
            prepare(world)
            world.die()

    world.calls.before = die_late
    report = world.scan()
    assert world.log.last_resources() == {world.gtrid: "till"}
    assert _exit_code(report) is ExitCode.HEURISTIC
    assert len(world.scan().rolled_back) == 2
    assert told(world) == [("", "till", "rollback", "lost")]


def test_38_a_decision_takes_the_place_of_the_note(world: RecoveryWorld) -> None:
    world.log.record(world.gtrid, [world.a.record(world.xid(world.a, 0)), world.b.record(world.xid(world.b, 1))])
    world.die()
    report = world.scan()
    assert len(report.committed) == 2
    assert _exit_code(report) is ExitCode.OK


def test_38_what_its_process_has_told_itself_is_not_told_again(world: RecoveryWorld) -> None:
    world.log.record_heuristic(Heuristic(world.gtrid, "", "till", "rollback", "committed"))
    world.die()
    assert world.scan().heuristics == ()
    assert told(world) == [("", "till", "rollback", "committed")]
    world = RecoveryWorld()
    world.log.note_last(world.gtrid, "till")
    prepare(world)
    world.log.finish(world.gtrid)
    assert len(world.scan().rolled_back) == 2
    assert told(world) == []


def test_38_by_hand_it_is_rolled_back_beside_its_process_and_the_hazard_is_told(world: RecoveryWorld) -> None:
    report = world.recovery.rollback(world.gtrid)
    assert _exit_code(report) is ExitCode.HEURISTIC
    assert world.outcomes() == {"rolled back"}
    assert told(world) == [("", "till", "rollback", "lost")]
    assert world.log.aborted() == {world.gtrid}
    with pytest.raises(Refused):
        world.log.record(world.gtrid, [])


def test_38_by_hand_it_is_refused_where_its_process_decides_meanwhile(world: RecoveryWorld) -> None:
    records = [world.a.record(world.xid(world.a, 0)), world.b.record(world.xid(world.b, 1))]
    meanwhile = world.log.record_heuristic

    def decide(found: Heuristic) -> None:
        meanwhile(found)
        world.log.record(world.gtrid, records)

    world.log.record_heuristic = decide  # type: ignore[method-assign]
    with pytest.raises(ProgrammingError, match="decided to commit"):
        world.recovery.rollback(world.gtrid)
    assert told(world) == []
    assert world.outcomes() == set()


@pytest.mark.parametrize("crash", range(40))
def test_38_a_recovery_that_is_interrupted_at_any_call_tells_of_it_all_the_same(crash: int) -> None:
    world = RecoveryWorld()
    world.log.note_last(world.gtrid, "till")
    prepare(world)
    world.die()

    def interrupt(number: int) -> None:
        if number == crash:
            raise KeyboardInterrupt

    world.calls.before = interrupt
    for _ in range(3):
        try:
            world.scan()
        except KeyboardInterrupt:
            world.recovery = RecoveryManager(log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0)
    assert world.outcomes() == {"rolled back"}
    assert told(world) == [("", "till", "rollback", "lost")]
    assert world.is_clean()
    assert world.disk.states[world.incarnation] is IncarnationState.FENCED
