"""The real coordinator and the real recovery, in every interleaving with every fate of every command, over a model.

`TXPOOL_EXPLORE_DEPTH=1` (2, 3 …) allows more faults in one execution. Of the largest scenarios a tenth is explored,
of the others half, others with each seed (TXPOOL_CRASH_SEED); with TXPOOL_CRASH_FULL=1 all are. A violation prints its
trace, step by step, and how to see it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.crash.evidence import Count, Evidence
from tests.crash.explorer.actors import Process, coordinator_program
from tests.crash.explorer.explore import Explorer, State
from tests.crash.explorer.model import RIGHT
from tests.crash.explorer.scenarios import (
    FAILOVER,
    FORGED_TWO,
    LARGEST,
    MARKED,
    SCENARIOS,
    TWO,
    UNNOTED,
    Scenario,
    deeper,
)
from tests.crash.explorer.trace import replay_string, tell, trace
from txpool import loops

Program = Callable[[Any], None]

DEPTH = int(os.environ.get("TXPOOL_EXPLORE_DEPTH", "0"))
_LIMIT = 400_000 * (1 + DEPTH) ** 2


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A hundred thousand executions have nothing to say that a trace does not say better."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.name, marks=pytest.mark.part(10 if each.name in LARGEST else 2)) for each in SCENARIOS],
)
def test_no_interleaving_and_no_fault_breaks_an_invariant(scenario: Scenario, evidence: Evidence) -> None:
    explorer = Explorer(deeper(scenario, DEPTH))
    finding = explorer.search(_LIMIT)
    print(finding)
    assert not finding.problem, "\n" + trace(explorer, finding)
    assert finding.complete or DEPTH, "the bounds of a scenario in the suite are such that all of it is explored"
    evidence.add(Count.STATES, finding.states)


def in_a_task(program: Program, runner: asyncio.Runner) -> Program:
    """The same in an event loop, to which it switches before each of its commands."""
    from txpool.aio.bridge import run

    def play(player: Any) -> None:
        calling = player.call

        def call(*command: Any) -> Any:
            current = loops.current()
            assert current is not None
            woken = current.signal()
            runner.get_loop().call_soon(woken.release)
            woken.acquire()
            return calling(*command)

        player.call = call
        runner.run(run(lambda: program(player)))

    return play


@pytest.mark.parametrize("scenario", [TWO, pytest.param(MARKED, marks=[pytest.mark.part(3)])], ids=["two", "marked"])
def test_a_coordinator_in_a_task_does_the_same(scenario: Scenario, evidence: Evidence) -> None:
    pytest.importorskip("greenlet")
    synchronous, explorer = Explorer(scenario), Explorer(scenario)
    with asyncio.Runner() as runner:
        program = in_a_task(coordinator_program(scenario), runner)
        explorer.processes[0] = Process(program, frozenset())
        finding = explorer.search(_LIMIT)
    assert not finding.problem, "\n" + trace(explorer, finding)
    assert finding.states == synchronous.search(_LIMIT).states > 100
    evidence.add(Count.STATES, finding.states)


def wandered(explorer: Explorer) -> tuple[set[str], set[State]]:
    """The choices and the states of the first that a search in depth meets."""
    seen: set[str] = set()
    frontier, known = [explorer.first], {explorer.first}
    while frontier and len(known) < 60_000:
        for choice, following in explorer.steps(frontier.pop()):
            seen.add(choice)
            if following not in known:
                known.add(following)
                frontier.append(following)
    return seen, known


def test_what_is_explored_is_what_it_says() -> None:
    """Every fault that a scenario allows was met, and every kind of outcome was reported."""
    seen, states = wandered(Explorer(replace(TWO, disk=True, refusals=True, cuts=1)))
    reported = {state.reported.value if state.reported else "" for state in states}
    fates = {f"{who}.{fate}" for who in ("C", "R1") for fate in ("ok", "lost", "reply-lost", "late", "unsynced")}
    assert fates | {"C.no", "C.sync-fails", "crash", "lease", "land0", "cut.orders", "cut.audit"} <= seen
    assert {"committed", "rolled back", "in doubt"} <= reported


def test_a_stranger_prepares_under_every_name_and_at_the_end_too() -> None:
    """Before ours, which then votes no, and when ours has ended; under the names of others, in each database."""
    explorer = Explorer(replace(FORGED_TWO, forges=1, fates=0))
    seen, states = wandered(explorer)
    names = {choice.partition(".")[2] for choice in seen if choice.startswith(("forge.", "last."))}
    said = {"L", "M.nosuch", "M.ledger", f"M.ledger:{RIGHT}", "M.ledger:wrong0table0"}
    assert {f"9:{place}:{it}@{place}" for place in ("orders", "audit") for it in said} <= names
    own = {place: f"{number}:{place}:M.ledger:{RIGHT}" for number, place in enumerate(("orders", "audit"))}
    assert {f"{own[name]}@{place}" for name in own for place in own} <= names
    taken = [state.world for state in states if ("orders", own["orders"]) in state.world.forged]
    assert {"open", "aborted", "committed"} <= {world.branches[0][0] for world in taken}
    assert "prepared" not in {world.branches[0][0] for world in taken}


def test_the_largest_are_scenarios() -> None:
    assert {scenario.name for scenario in SCENARIOS} > LARGEST


def test_a_note_meets_every_fate() -> None:
    explorer = Explorer(UNNOTED)
    fates = {choice for choice, _ in explorer.steps(explorer.first)}
    assert explorer.processes[0].command(0) == ("note_location", "log", "orders")
    assert {"C.ok", "C.lost", "C.reply-lost", "C.late", "crash", "lease"} <= fates


def test_a_replay_tells_the_same_story() -> None:
    explorer = Explorer(TWO, frozenset({"snapshot"}))
    finding = explorer.search(100_000, "MIX")
    assert finding.problem
    name, _, choices = replay_string(finding).partition("/")
    assert name == TWO.name
    lines, problem = tell(Explorer(TWO, frozenset({"snapshot"})), choices.split())
    assert problem == finding.problem
    assert lines[0].endswith("PREPARE orders: answers commit")
    assert any("coordinator's lease is lost" in line for line in lines)
    assert lines[-1].endswith(problem)


def test_a_server_fails_over_to_one_that_has_the_branch_and_to_one_that_lacks_it() -> None:
    seen, states = wandered(Explorer(FAILOVER))
    assert {f"{event}.{name}" for event in ("promoted", "failover") for name in ("orders", "audit")} <= seen
    assert "heuristic hazard" in {state.reported.value if state.reported else "" for state in states}
