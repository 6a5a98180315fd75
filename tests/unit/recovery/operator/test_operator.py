"""What people do about recovery: suspend it, act by hand with a reason, hear of heuristic outcomes once."""

from __future__ import annotations

import logging
import threading

import pytest

from recovery import RecoveryManager
from tests.models.recovery import RecoveryWorld, logged, marked, world_after
from txpool.errors import LogError, ProgrammingError
from txpool.log.base import SideRecord
from txpool.resources.base import BranchOutcome


def heuristic_world() -> RecoveryWorld:
    """Decided to commit; somebody has rolled b back by hand."""
    world = world_after(logged, "decided")
    world.b.end(world.xid(world.b, 1), BranchOutcome.ROLLED_BACK)
    return world


# -- suspended ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [logged, marked])
def test_a_suspended_recovery_does_nothing_in_any_process_until_it_is_resumed(
    steps: object, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_after(steps, "decided")
    held = world.recovery.suspend("the disk is being replaced")
    assert "the disk is being replaced" in str(held)
    assert world.recovery.suspend("again") == held, "the first one stands"
    for manager in (world.recovery, world.recoverer(), world.recoverer()):
        world.calls.names.clear()
        report = manager.scan()
        assert str(held) in report.suspended
        assert report.suspended in str(report)
        assert not {"fence", "purge", "a.committed", "ledger.tombstone", "ledger.delete"} & set(world.calls.names)
    assert world.recoverer().suspended() == held
    assert len(world.a.prepared) == 1
    assert caplog.text.count("does nothing until") == 3, "once for each manager"
    world.recovery.scan()
    assert caplog.text.count("does nothing until") == 3, "it is no news"
    assert world.recoverer().resume() is True
    assert world.recovery.resume() is False
    world.recovery.scan()
    assert world.outcomes() == {"committed"}


def test_one_that_is_suspended_between_its_passes_does_not_begin_the_second() -> None:
    world = world_after(logged, "b prepared")

    def suspend(number: int) -> None:
        if world.calls.names[number] == "a.recover":
            world.calls.before = lambda _: None
            world.recoverer().suspend()

    world.calls.before = suspend
    assert world.scan().suspended
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    world.recovery.resume()
    world.scan()
    assert world.outcomes() == {"rolled back"}


def test_by_hand_and_to_look_at_it_is_not_suspended() -> None:
    world = world_after(logged, "decided")
    world.recovery.suspend()
    assert len(world.recovery.in_doubt()) == 1
    world.recovery.commit(world.gtrid)
    assert world.outcomes() == {"committed"}


def test_the_thread_goes_on_after_it_is_resumed() -> None:
    world = world_after(logged, "decided")
    done = threading.Event()
    manager = RecoveryManager(log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0, period=0.001)

    def watch(number: int) -> None:
        if world.calls.names[number] == "purge":
            done.set()

    world.calls.before = watch
    world.recovery.suspend()
    manager.start()
    world.recovery.resume()
    assert done.wait(60)
    manager.stop()
    assert world.is_clean()


# -- the audit ----------------------------------------------------------------------------------------------------


def test_what_is_done_by_hand_is_kept_with_who_when_why_and_what_came_of_it(caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(logged, "b prepared")
    with pytest.raises(ProgrammingError):
        world.recovery.commit(world.gtrid, "the boss said so")
    world.recovery.rollback(world.gtrid, "ticket 7")
    world.recovery.suspend("pause")
    world.recovery.resume()
    entries = world.recoverer().audit_entries()
    assert [(entry.command, entry.gtrid, entry.reason) for entry in entries] == [
        ("commit", world.gtrid, "the boss said so"),
        ("rollback", world.gtrid, "ticket 7"),
        ("suspend", "", "pause"),
        ("resume", "", ""),
    ]
    assert entries[0].outcome.startswith(f"refused: {world.gtrid} is not decided")
    assert [entry.outcome for entry in entries[1:]] == ["done: 2 rolled back", "done", "done"]
    assert all("@" in entry.who and entry.when > 0 for entry in entries)
    assert f"rollback of {world.gtrid} by {entries[1].who}: ticket 7" in caplog.text
    shown = world.recovery.show(world.gtrid)
    assert shown is not None
    assert shown.history == tuple(entries[:2])


def test_nobody_can_pass_for_another_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "USERNAME"):
        monkeypatch.setenv(variable, "somebody-else")
    world = RecoveryWorld()
    world.recovery.suspend()
    assert "somebody-else" not in world.recovery.audit_entries()[0].who


def test_nothing_is_done_where_the_audit_cannot_be_kept() -> None:
    world = world_after(logged, "b prepared")

    def refuse(record: SideRecord) -> None:
        raise LogError("the disk is full")

    world.log.put_record = refuse  # type: ignore[method-assign]
    with pytest.raises(LogError, match="disk is full"):
        world.recovery.rollback(world.gtrid)
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    assert world.disk.outcomes == {}


def test_a_deed_whose_outcome_cannot_be_kept_is_done_and_said_to_have_begun(caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(logged, "b prepared")
    keep, records = world.log.put_record, list[SideRecord]()

    def once(record: SideRecord) -> None:
        records.append(record)
        if len(records) > 1:
            raise LogError("the disk is full")
        keep(record)

    world.log.put_record = once  # type: ignore[method-assign]
    world.recovery.rollback(world.gtrid)
    assert world.outcomes() == {"rolled back"}
    assert [entry.outcome for entry in world.recovery.audit_entries()] == ["begun"]
    assert "the log could not store the outcome" in caplog.text


# -- heuristic outcomes -------------------------------------------------------------------------------------------


def test_a_heuristic_outcome_is_news_once_over_passes_and_restarts(caplog: pytest.LogCaptureFixture) -> None:
    world = heuristic_world()
    world.a.silent = True  # so that the decision is kept, and each pass meets the outcome again
    reports = [manager.scan() for manager in [world.recovery] * 3 + [world.recoverer() for _ in range(3)]]
    assert [len(report.heuristics) for report in reports] == [1, 0, 0, 0, 0, 0]
    assert caplog.text.count("heuristic outcome:") == 1
    assert len(world.log.heuristics()) == 1


def test_what_is_left_alone_is_news_once_for_each_process_and_again_when_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = world_after(logged, "decided")
    world.a.reachable = False
    for _ in range(3):
        world.scan()
    assert caplog.text.count("a has not answered; the decision") == 1
    world.recoverer().scan()
    assert caplog.text.count("a has not answered; the decision") == 2, "a new process says what it finds"
    world.a.reachable, world.a.silent = True, True
    world.scan()
    assert caplog.text.count("gave no answer to its commit") == 1
    world.a.reachable, world.a.silent = False, False
    world.scan()
    assert caplog.text.count("a has not answered; the decision") == 3, "it has come back"


def test_a_heuristic_outcome_is_listed_shown_and_forgotten_once_it_is_over() -> None:
    world = heuristic_world()
    world.a.silent = True
    world.scan()
    (found,) = world.recovery.in_doubt()
    assert [(each.datasource, each.decided, each.ended) for each in found.heuristics] == [
        ("b", "commit", "rolled back")
    ]
    with pytest.raises(ProgrammingError, match="has not ended"):
        world.recovery.forget(world.gtrid)
    assert len(world.log.heuristics()) == 1
    world.a.silent = False
    world.scan()
    (found,) = world.recovery.in_doubt()
    assert found.next.startswith("nothing: no branch of it is prepared")
    for act in (world.recovery.commit, world.recovery.rollback):
        with pytest.raises(ProgrammingError, match=r"has ended.*heuristic.*forget"):
            act(world.gtrid)
    assert world.disk.outcomes == {}, "no abort record of what was committed"
    assert world.recovery.forget(world.gtrid, "repaired by hand") == 1
    assert world.recovery.in_doubt() == []
    with pytest.raises(ProgrammingError, match="no heuristic outcome"):
        world.recovery.forget(world.gtrid)


def test_a_commit_by_hand_meets_a_heuristic_outcome_and_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "txpool.recovery")
    world = heuristic_world()
    world.log.fence(world.incarnation)
    report = world.recovery.commit(world.gtrid)
    assert [each.datasource for each in report.heuristics] == ["b"]
    assert [each.datasource for each in report.committed] == ["a"]
    assert world.disk.outcomes == {}
