"""The coordinator against a model: every call of the protocol fails once, and every pair of them, in each way there is.

A fault strikes before a call has its effect, or after it (the reply is lost), as an error or as a KeyboardInterrupt.
Whatever strikes where, the invariants hold: no mix of outcomes; success only after the decision is durable; rollback
is never reported where a branch commits; in doubt is reported as in doubt; what is unaccounted for has a finished mark.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.models.coordinator import ConnectionLost, CoordinatorWorld
from txpool.resources.base import PrepareVote
from txpool.tm.commit.request import Outcome

KINDS = [(when, error) for when in ("before", "after") for error in (ConnectionLost, KeyboardInterrupt)]
SHAPES = [
    pytest.param(CoordinatorWorld(1), id="one"),
    pytest.param(CoordinatorWorld(2), id="two"),
    pytest.param(CoordinatorWorld(3), id="three"),
    pytest.param(CoordinatorWorld(1, marked=True), id="one and marked"),
    pytest.param(CoordinatorWorld(2, marked=True), id="two and marked"),
    pytest.param(CoordinatorWorld(0, marked=True), id="marked alone"),
    pytest.param(CoordinatorWorld(0, adopted=1), id="one task"),
    pytest.param(CoordinatorWorld(0, adopted=2), id="two tasks"),
    pytest.param(CoordinatorWorld(1, adopted=2), id="one and two tasks"),
    pytest.param(CoordinatorWorld(1, marked=True, adopted=1), id="one, a task and marked"),
    pytest.param(CoordinatorWorld(1, marked=True, early=1), id="one named early, and marked"),
    pytest.param(CoordinatorWorld(2, marked=True, early=1), id="one named early, one late, and marked"),
    pytest.param(CoordinatorWorld(2, early=1), id="one named early, and one late"),
    pytest.param(CoordinatorWorld(2, votes={0: PrepareVote.READ_ONLY}), id="one of two read-only"),
    pytest.param(CoordinatorWorld(2, votes={0: PrepareVote.READ_ONLY, 1: PrepareVote.READ_ONLY}), id="both read-only"),
    pytest.param(CoordinatorWorld(2, votes={1: None}), id="the second votes to roll back"),
    pytest.param(CoordinatorWorld(2, asked=(0, 1)), id="two that are asked"),
    pytest.param(CoordinatorWorld(2, reads=(0,)), id="one, and one that reads"),
    pytest.param(CoordinatorWorld(2, reads=(0, 1)), id="two that read"),
    pytest.param(CoordinatorWorld(3, reads=(1,)), id="two, and one that reads"),
    pytest.param(CoordinatorWorld(1, marked=True, reads=(0,)), id="one that reads, and marked"),
    pytest.param(CoordinatorWorld(2, marked=True, reads=(1,)), id="one, one that reads, and marked"),
    pytest.param(CoordinatorWorld(1, marked=True, reads=(-1,)), id="one, and marked that reads"),
    pytest.param(CoordinatorWorld(2, marked=True, reads=(-1,)), id="two, and marked that reads"),
    pytest.param(CoordinatorWorld(1, adopted=1, reads=(0,)), id="one that reads, and a task"),
    pytest.param(CoordinatorWorld(1, marked=True, adopted=1, reads=(-1,)), id="one, a task, and marked that reads"),
]


def singles(world: CoordinatorWorld) -> Iterator[dict[int, tuple[str, type[BaseException]]]]:
    """One fault at each call, until a plan is no longer reached."""
    for number in itertools.count():
        for kind in KINDS:
            world.run({number: kind})
            if number >= len(world.faults.calls):
                return
            yield {number: kind}


@pytest.mark.parametrize("world", SHAPES)
def test_any_one_fault(world: CoordinatorWorld) -> None:
    runs = 0
    for _ in singles(world):
        world.check()
        runs += 1
    assert runs >= 4


@pytest.mark.slow
@pytest.mark.parametrize("world", SHAPES)
def test_any_two_faults(world: CoordinatorWorld) -> None:
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
def test_what_is_in_doubt_is_settled_later_and_rightly(world: CoordinatorWorld) -> None:
    for first in list(singles(world)):
        for number in range(next(iter(first)) + 1, next(iter(first)) + 4):
            world.run(first | {number: ("before", ConnectionLost)})
            if world.result.outcome is not Outcome.IN_DOUBT or not world.result.resolvable:
                continue
            decided = world.decided
            world.faults.plan.clear()
            settled = world.coordinator.retry()
            assert settled.outcome is (Outcome.COMMITTED if decided else Outcome.ROLLED_BACK)
            wanted = "committed" if decided else "rolled back"
            everyone = [branch for branch in (*world.new, *world.old) if branch not in world.readers]
            voted = [branch for branch in everyone if branch.vote is not PrepareVote.READ_ONLY]
            assert {branch.state for branch in voted} == {wanted}


def test_nothing_goes_wrong() -> None:
    for shape in SHAPES:
        world: CoordinatorWorld = shape.values[0]  # type: ignore[assignment]
        world.run({})
        bad = None in world.votes.values()
        assert world.result.outcome is (Outcome.ROLLED_BACK if bad else Outcome.COMMITTED)
        assert not world.decided, "the decision was not forgotten"
        assert not world.disk.finished, "a mark was left though everybody has answered"
        assert {reader.state for reader in world.readers} <= {"committed"}


@pytest.mark.parametrize("world", SHAPES)
def test_the_end_of_a_reader_changes_no_outcome(world: CoordinatorWorld) -> None:
    world.run({})
    outcome, calls = world.result.outcome, list(world.faults.calls)
    ends = [number for number, call in enumerate(calls) if ".reader_" in call]
    assert bool(ends) is bool(world.reads)
    for number in ends:
        for kind in KINDS:
            world.run({number: kind})
            assert world.result.outcome is outcome
            assert not world.result.pending
            assert [call for call in world.faults.calls if ".reader_" not in call and "rollback" not in call] == [
                call for call in calls if ".reader_" not in call
            ]
