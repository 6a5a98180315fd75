"""Rule 38: the largest timeout of an incarnation's transactions is durable before the first PREPARE of that one."""

from __future__ import annotations

from math import inf

import pytest

from tests.models.coordinator import ConnectionLost, CoordinatorWorld
from tests.unit.log.stores import gtrid_of
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.request import CommitRequest, Outcome


@pytest.mark.parametrize("marked", [False, True])
def test_38_the_timeout_is_noted_before_the_first_prepare(marked: bool) -> None:
    world = CoordinatorWorld(2, marked=marked)
    world.run({})
    calls = world.faults.calls
    assert calls.index("log.note_timeout") < calls.index("db0.start_prepare")
    assert calls.count("log.note_timeout") == 1
    assert {name for kind, name in world.disk.side_records if kind == "timeout"} == {
        f"{world.gtrid.split(':')[2]} {inf}"
    }


@pytest.mark.parametrize("when", ["before", "after"])
def test_38_a_note_that_fails_is_a_vote_to_roll_back(when: str) -> None:
    world = CoordinatorWorld(2)
    world.run({2: (when, ConnectionLost)})
    assert world.faults.calls[2] == "log.note_timeout"
    assert world.result.outcome is Outcome.ROLLED_BACK
    assert not any(call.endswith("prepare") for call in world.faults.calls)
    world.check()


@pytest.mark.parametrize(("branches", "marked"), [(1, False), (0, True), (0, False)])
def test_38_one_phase_needs_no_note(branches: int, marked: bool) -> None:
    world = CoordinatorWorld(branches, marked=marked)
    world.run({})
    assert "log.note_timeout" not in world.faults.calls


def test_38_tasks_have_prepared_before_and_the_commit_adds_nothing() -> None:
    world = CoordinatorWorld(0, adopted=2)
    world.run({})
    assert world.result.outcome is Outcome.COMMITTED
    assert "log.note_timeout" not in world.faults.calls


def test_38_a_coordinator_passes_the_timeout_of_its_transaction_on() -> None:
    world = CoordinatorWorld(2)
    world.run({})
    disk = MemoryDisk("etl-1")
    log = MemoryLog(disk, node="etl-1")
    request = CommitRequest(gtrid_of(log), branches=world.new, timeout=2.5)
    for branch in world.new:
        branch.state = "open"
    assert Coordinator(request, log).commit().outcome is Outcome.COMMITTED
    assert log.timeouts() == {log.incarnation: 2.5}
