"""The last resource: its note is durable before the first PREPARE, and a torn outcome is told, whatever fails."""

from __future__ import annotations

import pytest

from tests.models.coordinator import ConnectionLost, CoordinatorWorld
from txpool.log.base import IncarnationState
from txpool.resources.base import PrepareVote
from txpool.tm.commit.request import Outcome


def note(world: CoordinatorWorld) -> str | None:
    kept = world.disk.outcomes.get(world.gtrid)
    return kept if isinstance(kept, str) else None


def test_38_the_note_is_durable_before_the_first_prepare_and_gives_its_place_to_the_decision() -> None:
    world = CoordinatorWorld(2, last=True)
    seen: list[str | None] = []
    looks = {name: lambda: seen.append(note(world)) for name in ("db0.start_prepare", "last.commit_one_phase")}
    world.run({}, beside=looks)
    assert seen == ["last", "last"]
    calls = world.faults.calls
    assert calls.index("log.note_last") < calls.index("db0.start_prepare")
    assert calls.index("last.commit_one_phase") < calls.index("log.record")
    assert world.result.outcome is Outcome.COMMITTED
    assert world.disk.outcomes == {}


def test_38_a_last_resource_that_is_alone_or_that_has_done_nothing_needs_no_note() -> None:
    alone = CoordinatorWorld(0, last=True)
    alone.run({})
    assert alone.result.outcome is Outcome.COMMITTED
    assert not [call for call in alone.faults.calls if call.startswith("log.")]


@pytest.mark.parametrize("late_branches", [False, True])
@pytest.mark.parametrize(
    "votes", [{1: None}, {0: PrepareVote.READ_ONLY, 1: PrepareVote.READ_ONLY}], ids=["no", "read-only"]
)
def test_38_the_note_goes_where_nothing_is_decided(votes: dict[int, PrepareVote | None], late_branches: bool) -> None:
    world = CoordinatorWorld(2, last=True, votes=votes, late_branches=late_branches)
    world.run({})
    assert note(world) is None
    assert (world.gtrid in world.disk.finished) == late_branches


def test_38_the_note_is_refused_once_recovery_has_the_key() -> None:
    world = CoordinatorWorld(0, adopted=2, last=True)
    world.run({}, beside={"log.note_last": lambda: world.disk.outcomes.setdefault(world.gtrid, None)})
    assert world.result.outcome is Outcome.ROLLED_BACK
    assert world.last_resource is not None
    assert {branch.state for branch in (*world.old, world.last_resource)} == {"rolled back"}


def test_38_a_process_that_is_fenced_when_its_last_resource_has_committed_tells_of_it() -> None:
    world = CoordinatorWorld(2, last=True)
    world.run({}, fenced_at="log.record")
    assert world.result.outcome is Outcome.HEURISTIC_MIXED
    assert ("", "committed") in {(kept.bqual, kept.ended) for kept in world.disk.heuristics.values()}
    assert note(world) is None


@pytest.mark.parametrize("purged", [False, True])
def test_38_a_last_resource_does_not_commit_once_recovery_has_fenced_its_process(purged: bool) -> None:
    """Recovery has told by then that it may have: a person has looked, and found that it has not."""
    world = CoordinatorWorld(2, last=True)

    def recover() -> None:
        world.fence()
        if purged:
            del world.disk.outcomes[world.gtrid]

    world.run({}, beside={"db1.await_prepare": recover})
    assert world.last_resource is not None
    assert world.last_resource.state == "rolled back"


@pytest.mark.parametrize("error", [ConnectionLost, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("shape", [{"branches": 2}, {"branches": 1, "adopted": 1}, {"branches": 2, "votes": {1: None}}])
def test_38_whatever_call_fails_a_torn_outcome_is_told(
    shape: dict[str, int], when: str, error: type[BaseException]
) -> None:
    clean = CoordinatorWorld(last=True, **shape)  # type: ignore[arg-type]
    clean.run({})
    for number, call in enumerate(clean.faults.calls):
        world = CoordinatorWorld(last=True, **shape)  # type: ignore[arg-type]
        world.run({number: (when, error)})
        for _ in range(5):
            if not world.result.complete:
                world.result = world.coordinator.retry()
        failed = f"{when} {call}"
        assert world.result.complete, failed
        assert world.last_resource is not None
        states = {part.state for part in (*world.new, *world.old, world.last_resource)}
        told = world.result.outcome.value.startswith("heuristic")
        if {"committed", "rolled back"} <= states:
            assert told, failed
            assert world.disk.heuristics, failed
        if world.result.outcome is Outcome.COMMITTED:
            assert "rolled back" not in states, failed
        if world.result.outcome is Outcome.ROLLED_BACK:
            assert "committed" not in states, failed
        assert note(world) is None, failed
        assert world.disk.states[world.gtrid.split(":")[2]] is IncarnationState.ALIVE
