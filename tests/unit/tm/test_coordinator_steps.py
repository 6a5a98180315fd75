"""The coordinator's steps against a model: their order, what is written when, and what is said of one cut short."""

from __future__ import annotations

import itertools
import sys
import threading
from time import monotonic
from types import FrameType

import pytest

from tests.models.coordinator import ConnectionLost, CoordinatorWorld, ModelBranch
from tests.support.interrupts import at_each_check
from txpool.resources.base import BranchOutcome, PrepareVote
from txpool.tm.background.resolver import Resolver
from txpool.tm.commit import coordinator, readers
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.phase import Phase
from txpool.tm.commit.request import Outcome


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


@pytest.mark.parametrize("votes", [{}, {1: None}], ids=["commit", "rollback"])
def test_35_a_branch_that_was_named_for_the_log_gets_a_pointer_that_goes_after_the_row(
    votes: dict[int, PrepareVote | None],
) -> None:
    world = CoordinatorWorld(2, marked=True, early=1, votes=votes)
    world.run({})
    calls = world.faults.calls
    assert [branch.record.xid.bqual for branch in world.new] == ["0:db0:L", f"1:db1:M.ledger:{'1' * 12}"]
    assert calls.index("log.point") < calls.index("ledger.mark") < calls.index("log.is_fenced")
    assert calls.index("log.is_fenced") < calls.index("db0.start_prepare")
    assert calls[-1] == "log.purge"
    if not votes:
        assert calls.index("db1.await_commit") < calls.index("ledger.forget_pointed") < calls.index("log.purge")
    assert world.disk.pointers == {}


def test_35_where_all_are_named_for_the_marked_branch_or_it_has_only_read_there_is_no_pointer() -> None:
    for world in (CoordinatorWorld(2, marked=True), CoordinatorWorld(2, marked=True, early=1, reads=(-1,))):
        world.run({})
        assert "log.point" not in world.faults.calls
        assert world.result.outcome is Outcome.COMMITTED


def test_35_a_coordinator_that_was_fenced_while_it_wrote_its_row_rolls_back() -> None:
    world = CoordinatorWorld(1, marked=True, early=1)
    world.run({}, fenced_at="ledger.mark")
    assert world.result.outcome is Outcome.ROLLED_BACK
    assert "db0.start_prepare" not in world.faults.calls


def test_35_a_branch_has_the_number_of_its_place_of_enlistment() -> None:
    """Whatever takes no part: so it is known when the branch begins."""
    world = CoordinatorWorld(4, others=(1, 3, 4), idle=(1,), reads=(0,))
    world.run({})
    assert [branch.record.xid.bqual for branch in world.new] == ["", "", "5:db2:L", "6:db3:L"]


def test_one_branch_commits_in_one_phase_without_the_log() -> None:
    world = CoordinatorWorld(1)
    world.run({})
    assert world.faults.calls == ["db0.commit_one_phase"]


def test_a_single_prepared_branch_gets_a_decision() -> None:
    for world in (CoordinatorWorld(0, adopted=1), CoordinatorWorld(2, votes={0: PrepareVote.READ_ONLY})):
        world.run({})
        assert "log.record" in world.faults.calls


@pytest.mark.parametrize("reads", [(), (0,)], ids=["alone", "beside a reader"])
def test_one_that_has_no_commit_in_one_phase_is_prepared_and_decided(
    reads: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelBranch, "needs_decision", True, raising=False)
    world = CoordinatorWorld(1 + len(reads), reads=reads)
    world.run({})
    calls = [call for call in world.faults.calls if call.endswith(("_prepare", "_phase", "_commit", "record"))]
    last = f"db{len(reads)}"
    steps = ["start_prepare", "await_prepare", "record", "start_commit", "await_commit"]
    assert [each for each in calls if each.startswith((last, "log"))] == [
        f"{'log' if step == 'record' else last}.{step}" for step in steps
    ]
    assert world.result.outcome is Outcome.COMMITTED


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
def test_an_interrupt_wherever_one_can_come_while_phases_follow_each_other(
    votes: dict[int, PrepareVote | None],
) -> None:
    """Between two phases, and while the failure of one is handled."""
    codes = {each.__code__ for each in (Coordinator._advance, Coordinator._choose_next, Coordinator._keep_error)}
    for nth in itertools.count():
        world, left, struck = CoordinatorWorld(2, votes=votes), [nth], [""]

        def interrupt(frame: FrameType, left: list[int] = left, struck: list[str] = struck) -> None:
            left[0] -= 1
            if left[0] == -1:
                struck[0] = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise KeyboardInterrupt

        with at_each_check(codes, interrupt):
            world.run({})
        wanted = {Outcome.COMMITTED: {"committed"}, Outcome.ROLLED_BACK: {"rolled back"}}[world.result.outcome]
        assert {branch.state for branch in world.new} == wanted, struck
        if left[0] >= 0:
            break
        assert isinstance(world.result.interrupt, KeyboardInterrupt), struck
    assert nth > 8


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
    assert told.wait(60)
    settler.close(until=monotonic())
    assert world.disk.finished == {world.gtrid}


def test_what_has_ended_stays_as_it_ended_though_it_is_retried_again() -> None:
    """As after an interrupt, if the settler has ended it just before it was handed over a second time."""
    world = CoordinatorWorld(2)
    world.run({})
    calls = [*world.faults.calls]
    assert world.coordinator.retry().outcome is Outcome.COMMITTED
    assert world.faults.calls == calls


def test_a_marked_branch_that_has_not_answered_its_rollback_is_unaccounted_for() -> None:
    world = CoordinatorWorld(2, marked=True, votes={1: None})
    world.run({})
    world.run({world.faults.calls.index("ledger.rollback"): ("after", ConnectionLost)})
    assert world.result.pending == ["ledger"]
    assert world.gtrid in world.disk.finished


# -- a branch that is gone, on the server that prepared it: rule 34 ---------------------------------------------------


@pytest.mark.parametrize("state", ["committed", "rolled back"])
@pytest.mark.parametrize("marked", [False, True])
def test_34_a_branch_that_the_first_commit_does_not_find_is_a_hazard(state: str, marked: bool) -> None:
    world = CoordinatorWorld(2, marked=marked)
    world.run({}, beside={"db1.start_commit": lambda: world.end(1, state)})
    assert world.result.outcome is Outcome.HEURISTIC_HAZARD
    assert world.result.branch_outcomes["db1"] is BranchOutcome.LOST
    assert [(each.datasource, each.decided, each.ended) for each in world.disk.heuristics.values()] == [
        ("db1", "commit", "lost")
    ]
    assert world.gtrid in world.disk.finished


@pytest.mark.parametrize("at", ["db0.start_commit", "db1.start_commit", "log.is_fenced"])
def test_34_where_recovery_has_fenced_the_process_it_has_committed_the_branch(at: str) -> None:
    """The fence is read after the answer: recovery may have fenced and committed until just before that."""
    world = CoordinatorWorld(2)

    def recover() -> None:
        world.fence()
        world.end(1, "committed")

    beside = (
        {at: recover}
        if at != "log.is_fenced"
        else {at: world.fence, "db1.start_commit": lambda: world.end(1, "committed")}
    )
    world.run({}, beside=beside)
    assert world.result.outcome is Outcome.COMMITTED
    assert world.result.branch_outcomes == {"db0": BranchOutcome.COMMITTED, "db1": BranchOutcome.COMMITTED}
    assert not world.disk.heuristics


def test_34_a_branch_that_recovery_has_rolled_back_is_rolled_back() -> None:
    world = CoordinatorWorld(2)

    def recover() -> None:
        world.fence()
        world.end(0, "rolled back")
        world.end(1, "rolled back")

    world.run({}, beside={"log.record": recover})
    assert world.result.outcome is Outcome.ROLLED_BACK
    assert not world.disk.heuristics


def test_34_one_that_a_person_has_ended_before_our_rollback_is_a_hazard() -> None:
    world = CoordinatorWorld(2, votes={1: None})
    world.run({}, beside={"db0.start_rollback": lambda: world.end(0, "committed")})
    assert world.result.outcome is Outcome.HEURISTIC_HAZARD


def test_34_without_an_identity_it_is_a_hazard_even_where_recovery_has_fenced() -> None:
    world = CoordinatorWorld(2)

    def recover() -> None:
        world.fence()
        world.end(1, "committed")
        world.new[1].record = world.new[1].record._replace(identity="")

    world.run({}, beside={"db1.start_commit": recover})
    assert world.result.outcome is Outcome.HEURISTIC_HAZARD


@pytest.mark.parametrize("error", [ConnectionLost, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["before", "after"])
def test_34_where_the_log_does_not_tell_of_a_fence_it_is_a_hazard(error: type[BaseException], when: str) -> None:
    world = CoordinatorWorld(2)
    beside = {"db1.start_commit": lambda: world.end(1, "committed")}
    world.run({}, beside=beside)
    number = world.faults.calls.index("log.is_fenced")
    world.run({number: (when, error)}, beside=beside)
    assert world.result.outcome is Outcome.HEURISTIC_HAZARD
    assert (world.result.interrupt is not None) == (error is KeyboardInterrupt)
    assert [each.ended for each in world.disk.heuristics.values()] == ["lost"]
