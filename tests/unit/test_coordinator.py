"""The coordinator against a model: every call of the protocol fails once, and every pair of them, in each way there is.

A fault strikes before a call has its effect, or after it (the reply is lost), as an error or as a KeyboardInterrupt.
Whatever strikes where, the invariants hold: no mix of outcomes; success only after the decision is durable; rollback
is never reported where a branch commits; in doubt is reported as in doubt; what is unaccounted for has a finished mark.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest

from txpool.coordinator import Coordinator, Outcome, Phase, Result, Unit
from txpool.log.base import Life
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import Answer, BranchRecord, Refused, Settled, Vote
from txpool.settler import Settler
from txpool.xid import TaskName, Xid, make_gtrid, make_xid


class Lost(Exception):
    """What a cut connection looks like."""


@dataclass
class Faults:
    """Which calls fail, by their number; counts the calls, so that a sweep knows where it ends."""

    plan: dict[int, tuple[str, type[BaseException]]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    struck: list[type[BaseException]] = field(default_factory=list)
    before: dict[str, Callable[[], None]] = field(default_factory=dict)

    def around(self, name: str, effect: Callable[[], Any]) -> Any:
        self.before.get(name, lambda: None)()
        number = len(self.calls)
        self.calls.append(name)
        when, error = self.plan.get(number, ("", Lost))
        if when == "before":
            self._strike(error, f"before {name}")
        result = effect()
        if when == "after":
            self._strike(error, f"after {name}")
        return result

    def _strike(self, error: type[BaseException], where: str) -> None:
        self.struck.append(error)
        raise error(where)


class ModelBranch:
    """A branch in a database that keeps its word, over a connection that may not."""

    idle = False

    def __init__(self, faults: Faults, datasource: str, vote: Vote | None = Vote.COMMIT) -> None:
        self.faults = faults
        self.datasource = datasource
        self.vote = vote
        self.state = "open"
        self.reachable = True
        self.record = BranchRecord(Xid("", ""), datasource)

    def _call(self, name: str, effect: Callable[[], Any]) -> Any:
        return self.faults.around(f"{self.datasource}.{name}", effect)

    def name(self, xid: Xid) -> None:
        self.record = BranchRecord(xid, self.datasource)

    def disturb(self, command: str) -> None:
        raise AssertionError("nobody disturbs a model")

    def start_prepare(self) -> None:
        self._call("start_prepare", lambda: None)

    def await_prepare(self) -> Vote:
        def effect() -> Vote:
            if self.vote is None:
                self.state = "rolled back"
                raise Lost("a vote to roll back")
            if self.vote is Vote.COMMIT:
                self.state = "prepared"
            return self.vote

        return self._call("await_prepare", effect)  # type: ignore[no-any-return]

    def start_commit(self) -> None:
        self._call("start_commit", lambda: None)

    def await_commit(self) -> Answer:
        return self._call("await_commit", lambda: self._end("committed", Answer.COMMITTED))  # type: ignore[no-any-return]

    def start_rollback(self) -> None:
        self._call("start_rollback", lambda: None)

    def await_rollback(self) -> Answer:
        return self._call("await_rollback", lambda: self._end("rolled back", Answer.ROLLED_BACK))  # type: ignore[no-any-return]

    def commit_one_phase(self) -> Answer:
        return self._call("commit_one_phase", lambda: self._end("committed", Answer.COMMITTED))  # type: ignore[no-any-return]

    def _end(self, state: str, answer: Answer) -> Answer:
        self.state = state
        return answer


class ModelMarked:
    """A marked branch: its row is written in its own local transaction, whose commit is the decision."""

    idle = False

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.datasource = "ledger"
        self.row: str | None = None  # None, "open", "committed", "tombstone"
        self.state = "open"

    def _call(self, name: str, effect: Callable[[], Any]) -> Any:
        return self.faults.around(f"ledger.{name}", effect)

    def disturb(self, command: str) -> None:
        raise AssertionError("nobody disturbs a model")

    def identity(self) -> str:
        return "1" * 12

    def mark(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        def effect() -> None:
            self.row = "open"

        self._call("mark", effect)

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        def effect() -> None:
            if self.row == "tombstone":
                raise Refused("the tombstone was first")
            self.row, self.state = "committed", "committed"

        self._call("record", effect)

    def abort(self, gtrid: str) -> Settled:
        def effect() -> Settled:
            if self.row == "committed":
                return Settled.COMMITTED
            self.row, self.state = "tombstone", "rolled back"
            return Settled.ABORTED

        return self._call("abort", effect)  # type: ignore[no-any-return]

    def forget(self, gtrid: str) -> None:
        self.row = None

    def rollback(self) -> Answer:
        def effect() -> Answer:
            self.state = "rolled back"
            return Answer.ROLLED_BACK

        return self._call("rollback", effect)  # type: ignore[no-any-return]

    def commit_one_phase(self) -> Answer:
        def effect() -> Answer:
            self.state = "committed"
            return Answer.COMMITTED

        return self._call("commit_one_phase", effect)  # type: ignore[no-any-return]


class FaultyLog:
    """The memory store, reached over something that may fail."""

    def __init__(self, log: MemoryLog, faults: Faults) -> None:
        self._log = log
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        if name not in {"record", "abort", "point", "finish", "is_fenced"}:
            return found
        return lambda *arguments: self._faults.around(f"log.{name}", lambda: found(*arguments))


@dataclass
class World:
    """One transaction over some branches, and what became of it."""

    branches: int
    marked: bool = False
    adopted: int = 0
    loose_ends: bool = False
    votes: dict[int, Vote | None] = field(default_factory=dict)

    def run(
        self,
        plan: dict[int, tuple[str, type[BaseException]]],
        *,
        fenced_at: str = "",
        watch: Callable[[Phase], object] | None = None,
    ) -> None:
        self.faults = Faults(plan, before={fenced_at: self.fence})
        self.disk = MemoryDisk("node")
        log = MemoryLog(self.disk, node="node")
        self.gtrid = make_gtrid("node", log.incarnation, 1)
        votes = [self.votes.get(number, Vote.COMMIT) for number in range(self.branches)]
        self.new = [ModelBranch(self.faults, f"db{number}", vote) for number, vote in enumerate(votes)]
        self.old = [ModelBranch(self.faults, f"task{number}") for number in range(self.adopted)]
        for number, branch in enumerate(self.old):
            branch.name(make_xid(self.gtrid, 0, branch.datasource, task=TaskName(0, number, number, 1)))
            branch.state = "prepared"
        self.ledger = ModelMarked(self.faults) if self.marked else None
        unit = Unit(self.gtrid, branches=self.new, adopted=self.old, marked=self.ledger, loose_ends=self.loose_ends)
        self.coordinator = Coordinator(unit, FaultyLog(log, self.faults), watch)  # type: ignore[arg-type]
        self.result: Result = self.coordinator.commit()

    def fence(self) -> None:
        """What recovery does to an incarnation that it takes for dead."""
        for incarnation in self.disk.lives:
            self.disk.lives[incarnation] = Life.FENCED

    @property
    def decided(self) -> bool:
        if self.ledger is not None:
            return self.ledger.row == "committed"
        return self.disk.outcomes.get(self.gtrid) is not None

    def check(self) -> None:
        everyone = [*self.new, *self.old]
        states = [branch.state for branch in everyone] + ([self.ledger.state] if self.ledger else [])
        outcome = self.result.outcome
        assert not {"committed", "rolled back"} <= set(states) or None in self.votes.values(), "a mix of outcomes"
        if outcome is Outcome.COMMITTED:
            assert "rolled back" not in states
            left = [branch for branch in everyone if branch.state == "prepared"]
            assert not left or self.decided, "success was reported and nothing stands for it"
            assert not left or self.gtrid in self.disk.finished or self._struck("log.finish")
        elif outcome is Outcome.ROLLED_BACK:
            assert "committed" not in states
            assert not self.decided, "rollback was reported and the decision stands"
            left = [branch for branch in everyone if branch.state == "prepared"]
            assert not left or self.gtrid in self.disk.finished or self._struck("log.finish")
        else:
            assert outcome is Outcome.IN_DOUBT
            if self.result.knowable:
                assert not {"committed", "rolled back"} & {branch.state for branch in everyone}
                assert self.gtrid not in self.disk.finished, "in doubt, and marked finished"
        interrupted = KeyboardInterrupt in self.faults.struck
        assert (self.result.interrupt is not None) == interrupted, "an interrupt was swallowed, or made up"

    def _struck(self, call: str) -> bool:
        return any(n < len(self.faults.calls) and self.faults.calls[n] == call for n in self.faults.plan)


KINDS = [(when, error) for when in ("before", "after") for error in (Lost, KeyboardInterrupt)]
SHAPES = [
    pytest.param(World(1), id="one"),
    pytest.param(World(2), id="two"),
    pytest.param(World(3), id="three"),
    pytest.param(World(1, marked=True), id="one and marked"),
    pytest.param(World(2, marked=True), id="two and marked"),
    pytest.param(World(0, marked=True), id="marked alone"),
    pytest.param(World(0, adopted=1), id="one task"),
    pytest.param(World(0, adopted=2), id="two tasks"),
    pytest.param(World(1, adopted=2), id="one and two tasks"),
    pytest.param(World(1, marked=True, adopted=1), id="one, a task and marked"),
    pytest.param(World(2, votes={0: Vote.READ_ONLY}), id="one of two read-only"),
    pytest.param(World(2, votes={0: Vote.READ_ONLY, 1: Vote.READ_ONLY}), id="both read-only"),
    pytest.param(World(2, votes={1: None}), id="the second votes to roll back"),
]


def singles(world: World) -> Iterator[dict[int, tuple[str, type[BaseException]]]]:
    """One fault at each call, until a plan is no longer reached."""
    for number in itertools.count():
        for kind in KINDS:
            world.run({number: kind})
            if number >= len(world.faults.calls):
                return
            yield {number: kind}


@pytest.mark.parametrize("world", SHAPES)
def test_any_one_fault(world: World) -> None:
    runs = 0
    for _ in singles(world):
        world.check()
        runs += 1
    assert runs >= 4


@pytest.mark.parametrize("world", SHAPES)
def test_any_two_faults(world: World) -> None:
    for first in list(singles(world)):
        start = next(iter(first)) + 1
        for number in itertools.count(start):
            world.run(first | {number: KINDS[0]})
            if number >= len(world.faults.calls):
                break
            for kind in KINDS:
                world.run(first | {number: kind})
                world.check()


@pytest.mark.parametrize("world", SHAPES)
def test_what_is_in_doubt_is_settled_later_and_rightly(world: World) -> None:
    for first in list(singles(world)):
        for number in range(next(iter(first)) + 1, next(iter(first)) + 4):
            world.run(first | {number: ("before", Lost)})
            if world.result.outcome is not Outcome.IN_DOUBT or not world.result.knowable:
                continue
            decided = world.decided
            world.faults.plan.clear()
            settled = world.coordinator.settle()
            assert settled.outcome is (Outcome.COMMITTED if decided else Outcome.ROLLED_BACK)
            wanted = "committed" if decided else "rolled back"
            voted = [branch for branch in (*world.new, *world.old) if branch.vote is not Vote.READ_ONLY]
            assert {branch.state for branch in voted} == {wanted}


def test_nothing_goes_wrong() -> None:
    for shape in SHAPES:
        world: World = shape.values[0]  # type: ignore[assignment]
        world.run({})
        bad = None in world.votes.values()
        assert world.result.outcome is (Outcome.ROLLED_BACK if bad else Outcome.COMMITTED)
        assert not world.decided, "the decision was not forgotten"
        assert not world.disk.finished, "a mark was left though everybody has answered"


def test_the_decision_is_written_after_the_last_vote_and_before_the_first_commit() -> None:
    world = World(2)
    world.run({})
    calls = world.faults.calls
    assert calls.index("log.record") > max(calls.index("db0.await_prepare"), calls.index("db1.await_prepare"))
    assert calls.index("log.record") < min(calls.index("db0.start_commit"), calls.index("db1.start_commit"))


def test_prepares_and_commits_overlap() -> None:
    world = World(2)
    world.run({})
    calls = world.faults.calls
    assert calls.index("db1.start_prepare") < calls.index("db0.await_prepare")
    assert calls.index("db1.start_commit") < calls.index("db0.await_commit")


def test_the_marked_row_is_answered_before_any_prepare_and_its_commit_follows_the_last_vote() -> None:
    world = World(2, marked=True)
    world.run({})
    calls = world.faults.calls
    assert calls.index("ledger.mark") < calls.index("db0.start_prepare")
    assert calls.index("db1.await_prepare") < calls.index("ledger.record") < calls.index("db0.start_commit")
    assert "log.record" not in calls


def test_a_task_named_for_the_log_gets_a_pointer_before_the_row_and_the_fence_is_read_after_it() -> None:
    world = World(0, marked=True, adopted=1)
    world.run({})
    calls = world.faults.calls
    assert calls.index("log.point") < calls.index("ledger.mark") < calls.index("log.is_fenced")
    assert calls.index("log.is_fenced") < calls.index("ledger.record")


def test_one_branch_commits_in_one_phase_without_the_log() -> None:
    world = World(1)
    world.run({})
    assert world.faults.calls == ["db0.commit_one_phase"]


def test_a_single_prepared_branch_gets_a_decision() -> None:
    for world in (World(0, adopted=1), World(2, votes={0: Vote.READ_ONLY})):
        world.run({})
        assert "log.record" in world.faults.calls


def test_a_lost_reply_to_the_only_commit_is_in_doubt_and_nobody_can_know() -> None:
    world = World(1)
    world.run({0: ("after", Lost)})
    assert world.result.outcome is Outcome.IN_DOUBT
    assert not world.result.knowable
    assert world.new[0].state == "committed"


def test_a_fenced_coordinator_that_finds_no_decision_says_in_doubt() -> None:
    """Recovery may have met the decision, completed it and forgotten it: rule 15 of the protocol."""
    world = World(2)
    world.run({})
    record = world.faults.calls.index("log.record")

    world.run({record: ("before", Lost)}, fenced_at="log.abort")
    assert world.result.outcome is Outcome.IN_DOUBT
    assert {branch.state for branch in world.new} == {"prepared"}


def test_refused_by_the_fence_is_rolled_back() -> None:
    world = World(2)
    world.run({}, fenced_at="db1.await_prepare")
    assert world.result.outcome is Outcome.ROLLED_BACK
    assert {branch.state for branch in world.new} == {"rolled back"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_log_that_could_not_be_told_of_the_end_is_told_later(when: str) -> None:
    """Without the finished mark nobody ends what is unaccounted for, for as long as this process lives."""
    world = World(2)
    world.run({})
    lost = world.faults.calls.index("db1.await_commit")
    world.run({lost: ("before", Lost), lost + 1: (when, Lost)})
    assert world.faults.calls[lost + 1] == "log.finish"
    assert world.result.outcome is Outcome.COMMITTED
    assert not world.result.settled

    assert world.coordinator.settle().outcome is Outcome.COMMITTED
    assert world.result.settled
    assert world.disk.finished == {world.gtrid}


@pytest.mark.parametrize("when", [None, "before", "after"])
@pytest.mark.parametrize("branches", [0, 1, 2])
def test_loose_ends_have_their_mark_however_it_was_committed(branches: int, when: str | None) -> None:
    """In one phase, or with nothing to commit, as well: what a Spark task leaves late waits for it."""
    world = World(branches, loose_ends=True)
    world.run({})
    assert world.disk.finished == {world.gtrid}
    if when is not None:
        world.run({world.faults.calls.index("log.finish"): (when, Lost)})
        assert (world.result.outcome, world.result.settled, world.result.knowable) == (Outcome.COMMITTED, False, True)
        assert world.coordinator.settle().settled
        assert world.disk.finished == {world.gtrid}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("at", ["PREPARE", "DECIDE", "COMMIT", "COMPLETE", "LET_GO", "ENDED"])
def test_what_watches_the_phases_changes_nothing_of_them(at: str, error: type[BaseException]) -> None:
    def watch(phase: Phase) -> None:
        if phase is Phase[at]:
            raise error

    world = World(2)
    world.run({}, watch=watch)
    assert (world.result.outcome, world.result.cause) == (Outcome.COMMITTED, None)
    assert {branch.state for branch in world.new} == {"committed"}
    assert not world.decided, "the decision was not forgotten"
    assert isinstance(world.result.interrupt, KeyboardInterrupt) == (error is KeyboardInterrupt)


@pytest.mark.parametrize("step", ["_prepare", "_decide", "_commit", "_roll_back", "_complete", "_let_go"])
def test_an_interrupt_before_the_first_line_of_a_phase(step: str) -> None:
    """Where Python looks for signals: at the start of each function."""
    struck: list[str] = []

    def strike(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == step and not struck:
            struck.append(step)
            raise KeyboardInterrupt

    world, profiled = World(2, votes={1: None} if step == "_roll_back" else {}), sys.getprofile()
    sys.setprofile(strike)
    try:
        world.run({})
    finally:
        sys.setprofile(profiled)
    assert struck
    assert isinstance(world.result.interrupt, KeyboardInterrupt)
    states = {branch.state for branch in world.new}
    assert states == {"committed" if world.result.outcome is Outcome.COMMITTED else "rolled back"}


def test_the_settler_tells_the_log_what_could_not_be_told() -> None:
    world = World(2)
    world.run({})
    lost = world.faults.calls.index("db1.await_commit")
    world.run({lost: ("before", Lost), lost + 1: ("before", Lost)})
    settler, told = Settler(), threading.Event()
    settler.add(world.coordinator, lambda result: told.set())
    assert told.wait(30)
    settler.close()
    assert world.disk.finished == {world.gtrid}
