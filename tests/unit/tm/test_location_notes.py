"""Rule 33: where a node prepares is durable in its log before the first PREPARE there."""

from __future__ import annotations

import pytest

from tests.models.coordinator import ConnectionLost, CoordinatorWorld
from txpool.tm.commit.request import Outcome


@pytest.mark.parametrize("marked", [False, True])
def test_33_a_note_is_durable_before_the_first_prepare(marked: bool) -> None:
    world = CoordinatorWorld(2, marked=marked)
    world.run({})
    calls = world.faults.calls
    assert calls.index("log.note_location") < calls.index("db0.start_prepare")
    assert calls.count("log.note_location") == 2
    assert {name for kind, name in world.disk.side_records if kind == "datasource"} == {
        "node datasource db0 ",
        "node datasource db1 ",
    }


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [0, 1])
def test_33_a_note_that_fails_is_a_vote_to_roll_back(number: int, when: str) -> None:
    world = CoordinatorWorld(2)
    world.run({number: (when, ConnectionLost)})
    assert world.faults.calls[number] == "log.note_location"
    assert world.result.outcome is Outcome.ROLLED_BACK
    assert not any(call.endswith("prepare") for call in world.faults.calls)
    assert [branch.state for branch in world.new] == ["rolled back"] * 2
    world.check()


@pytest.mark.parametrize(("branches", "marked"), [(1, False), (0, True), (0, False)])
def test_33_one_phase_needs_no_note(branches: int, marked: bool) -> None:
    world = CoordinatorWorld(branches, marked=marked)
    world.run({})
    assert world.result.outcome is Outcome.COMMITTED
    assert "log.note_location" not in world.faults.calls
    assert not [kind for kind, _ in world.disk.side_records if kind == "datasource"]
