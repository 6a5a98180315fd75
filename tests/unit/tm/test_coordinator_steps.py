"""The coordinator's steps against a model: their order, what is written when, and what is said of one cut short."""

from __future__ import annotations

import dis
import itertools
import sys
import threading
from time import monotonic
from types import FrameType
from typing import Any

import pytest

from tests.models.coordinator import ConnectionLost, CoordinatorWorld
from txpool.resources.base import PrepareVote
from txpool.tm import coordinator, readers
from txpool.tm.commit_request import Outcome
from txpool.tm.coordinator import Coordinator
from txpool.tm.phase import Phase
from txpool.tm.resolver import Resolver


def test_the_decision_is_written_after_the_last_vote_and_before_the_first_commit() -> None:
    world = CoordinatorWorld(2)
    world.run({})
    calls = world.faults.calls
    assert calls.index("log.record") > max(calls.index("db0.await_prepare"), calls.index("db1.await_prepare"))
    assert calls.index("log.record") < min(calls.index("db0.start_commit"), calls.index("db1.start_commit"))


def test_prepares_and_commits_overlap() -> None:
    world = CoordinatorWorld(2)
    world.run({})
    calls = world.faults.calls
    assert calls.index("db1.start_prepare") < calls.index("db0.await_prepare")
    assert calls.index("db1.start_commit") < calls.index("db0.await_commit")


def test_the_marked_row_is_answered_before_any_prepare_and_its_commit_follows_the_last_vote() -> None:
    world = CoordinatorWorld(2, marked=True)
    world.run({})
    calls = world.faults.calls
    assert calls.index("ledger.mark") < calls.index("db0.start_prepare")
    assert calls.index("db1.await_prepare") < calls.index("ledger.record") < calls.index("db0.start_commit")
    assert "log.record" not in calls


def test_a_task_named_for_the_log_gets_a_pointer_before_the_row_and_the_fence_is_read_after_it() -> None:
    world = CoordinatorWorld(0, marked=True, adopted=1)
    world.run({})
    calls = world.faults.calls
    assert calls.index("log.point") < calls.index("ledger.mark") < calls.index("log.is_fenced")
    assert calls.index("log.is_fenced") < calls.index("ledger.record")


def test_one_branch_commits_in_one_phase_without_the_log() -> None:
    world = CoordinatorWorld(1)
    world.run({})
    assert world.faults.calls == ["db0.commit_one_phase"]


def test_a_single_prepared_branch_gets_a_decision() -> None:
    for world in (CoordinatorWorld(0, adopted=1), CoordinatorWorld(2, votes={0: PrepareVote.READ_ONLY})):
        world.run({})
        assert "log.record" in world.faults.calls


def test_a_lost_reply_to_the_only_commit_is_in_doubt_and_nobody_can_know() -> None:
    world = CoordinatorWorld(1)
    world.run({0: ("after", ConnectionLost)})
    assert world.result.outcome is Outcome.IN_DOUBT
    assert not world.result.resolvable
    assert world.new[0].state == "committed"


def test_a_fenced_coordinator_that_finds_no_decision_says_in_doubt() -> None:
    """Recovery may have met the decision, completed it and forgotten it: rule 15 of the protocol."""
    world = CoordinatorWorld(2)
    world.run({})
    record = world.faults.calls.index("log.record")

    world.run({record: ("before", ConnectionLost)}, fenced_at="log.abort")
    assert world.result.outcome is Outcome.IN_DOUBT
    assert {branch.state for branch in world.new} == {"prepared"}


def test_refused_by_the_fence_is_rolled_back() -> None:
    world = CoordinatorWorld(2)
    world.run({}, fenced_at="db1.await_prepare")
    assert world.result.outcome is Outcome.ROLLED_BACK
    assert {branch.state for branch in world.new} == {"rolled back"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_log_that_could_not_be_told_of_the_end_is_told_later(when: str) -> None:
    """Without the finished mark nobody ends what is unaccounted for, for as long as this process lives."""
    world = CoordinatorWorld(2)
    world.run({})
    lost = world.faults.calls.index("db1.await_commit")
    world.run({lost: ("before", ConnectionLost), lost + 1: (when, ConnectionLost)})
    assert world.faults.calls[lost + 1] == "log.finish"
    assert world.result.outcome is Outcome.COMMITTED
    assert not world.result.complete

    assert world.coordinator.retry().outcome is Outcome.COMMITTED
    assert world.result.complete
    assert world.disk.finished == {world.gtrid}


@pytest.mark.parametrize("when", [None, "before", "after"])
@pytest.mark.parametrize("branches", [0, 1, 2])
def test_loose_ends_have_their_mark_however_it_was_committed(branches: int, when: str | None) -> None:
    """In one phase, or with nothing to commit, as well: what a Spark task leaves late waits for it."""
    world = CoordinatorWorld(branches, late_branches=True)
    world.run({})
    assert world.disk.finished == {world.gtrid}
    if when is not None:
        world.run({world.faults.calls.index("log.finish"): (when, ConnectionLost)})
        assert (world.result.outcome, world.result.complete, world.result.resolvable) == (
            Outcome.COMMITTED,
            False,
            True,
        )
        assert world.coordinator.retry().complete
        assert world.disk.finished == {world.gtrid}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("at", ["PREPARE", "DECIDE", "COMMIT", "COMPLETE", "FORGET", "ENDED"])
def test_what_watches_the_phases_changes_nothing_of_them(at: str, error: type[BaseException]) -> None:
    def watch(phase: Phase) -> None:
        if phase is Phase[at]:
            raise error

    world = CoordinatorWorld(2)
    world.run({}, watch=watch)
    assert (world.result.outcome, world.result.cause) == (Outcome.COMMITTED, None)
    assert {branch.state for branch in world.new} == {"committed"}
    assert not world.decided, "the decision was not forgotten"
    assert isinstance(world.result.interrupt, KeyboardInterrupt) == (error is KeyboardInterrupt)


@pytest.mark.parametrize("step", ["_prepare", "_decide", "_commit", "_roll_back", "_complete", "_forget"])
def test_an_interrupt_before_the_first_line_of_a_phase(step: str) -> None:
    """Where Python looks for signals: at the start of each function."""
    interrupted: list[str] = []

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == step and not interrupted:
            interrupted.append(step)
            raise KeyboardInterrupt

    world, profiled = CoordinatorWorld(2, votes={1: None} if step == "_roll_back" else {}), sys.getprofile()
    sys.setprofile(interrupt)
    try:
        world.run({})
    finally:
        sys.setprofile(profiled)
    assert interrupted
    assert isinstance(world.result.interrupt, KeyboardInterrupt)
    states = {branch.state for branch in world.new}
    assert states == {"committed" if world.result.outcome is Outcome.COMMITTED else "rolled back"}


@pytest.mark.parametrize("votes", [{}, {1: None}], ids=["commit", "rollback"])
def test_an_interrupt_between_two_phases(votes: dict[int, PrepareVote | None]) -> None:
    """CPython looks for signals also where a loop begins anew."""
    for nth in itertools.count():
        world, left, traced = CoordinatorWorld(2, votes=votes), [nth], sys.gettrace()
        before: dict[FrameType, int] = {}

        def interrupt(
            frame: FrameType,
            event: str,
            _: object,
            left: list[int] = left,
            before: dict[FrameType, int] = before,
        ) -> Any:
            if frame.f_code is not Coordinator._run.__code__:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode":
                last, before[frame] = before.get(frame), frame.f_lasti
                if last is not None and "JUMP_BACKWARD" in dis.opname[frame.f_code.co_code[last]]:
                    left[0] -= 1
                    if left[0] == -1:
                        raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            world.run({})
        finally:
            sys.settrace(traced)
            before.clear()
        assert {branch.state for branch in world.new} in ({"committed"}, {"rolled back"}), nth
        if left[0] >= 0:
            break
        assert isinstance(world.result.interrupt, KeyboardInterrupt)
    assert nth > 1


def calls_of_ours(struck_at: int, world: CoordinatorWorld) -> list[str]:
    """Run it, with an interrupt at the start of our so manyeth function; the functions that were called."""
    called: list[str] = []

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in (coordinator.__file__, readers.__file__):
            called.append(frame.f_code.co_name)
            if len(called) == struck_at:
                raise KeyboardInterrupt

    profiled = sys.getprofile()
    sys.setprofile(interrupt)
    try:
        world.run({})
    finally:
        sys.setprofile(profiled)
    return called


@pytest.mark.parametrize("reads", [(), (0,), (0, 1)])
def test_an_interrupt_before_or_after_the_only_commit_leaves_no_doubt(reads: tuple[int, ...]) -> None:
    """At the start of any function: what was not sent is rolled back, what was answered is as it was answered."""
    world = CoordinatorWorld(1 + bool(reads), reads=reads)
    calls = calls_of_ours(0, world)
    first, last = calls.index("_one_phase"), len(calls)
    if reads:  # the last look at the readers comes when all is over
        last -= calls[::-1].index("roll_back") + 1
    assert first < last
    for number in range(first, last):
        calls_of_ours(number + 1, world)
        result, wrote = world.result, {branch.state for branch in world.new if branch not in world.readers}
        assert isinstance(result.interrupt, KeyboardInterrupt)
        if calls[number] == "_finish_undecided" and wrote:
            assert (result.outcome, result.resolvable) == (Outcome.IN_DOUBT, False)
        elif wrote:
            states = {Outcome.COMMITTED: "committed", Outcome.ROLLED_BACK: "rolled back"}
            assert {states[result.outcome]} == wrote, calls[number]
        assert "open" not in {reader.state for reader in world.readers}


@pytest.mark.parametrize("reads", [(2,), (1, 2)])
def test_readers_end_once_the_others_have_answered_and_overlap(reads: tuple[int, ...]) -> None:
    world = CoordinatorWorld(4, reads=reads)
    world.run({})
    calls = world.faults.calls
    assert calls.index("db3.await_commit") < calls.index(f"db{reads[0]}.reader_start_commit")
    assert calls.index(f"db{reads[-1]}.reader_start_commit") < calls.index(f"db{reads[0]}.reader_await_commit")


def test_the_settler_tells_the_log_what_could_not_be_told() -> None:
    world = CoordinatorWorld(2)
    world.run({})
    lost = world.faults.calls.index("db1.await_commit")
    world.run({lost: ("before", ConnectionLost), lost + 1: ("before", ConnectionLost)})
    settler, told = Resolver(), threading.Event()
    settler.add(world.coordinator, lambda result: told.set())
    assert told.wait(30)
    settler.close(until=monotonic())
    assert world.disk.finished == {world.gtrid}


def test_a_marked_branch_that_has_not_answered_its_rollback_is_unaccounted_for() -> None:
    world = CoordinatorWorld(2, marked=True, votes={1: None})
    world.run({})
    world.run({world.faults.calls.index("ledger.rollback"): ("after", ConnectionLost)})
    assert world.result.pending == ["ledger"]
    assert world.gtrid in world.disk.finished
