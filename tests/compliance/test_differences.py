"""The comparison of a suite's two sides: what is a fault, and that the file of known differences cannot rot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compliance.suites.catalogue import SUITES
from tests.compliance.suites.differences import DIFFERENCES, Known, compare, known
from tests.compliance.suites.running import Sides

PASSED, FAILED, ERROR, SKIPPED = ((outcome, "") for outcome in ("passed", "failed", "error", "skipped"))


def entry(*tests: str) -> Known:
    return Known("s", tests, "a reason")


@pytest.mark.parametrize(
    ("bare", "handle"), [(PASSED, FAILED), (FAILED, PASSED), (PASSED, SKIPPED), (SKIPPED, PASSED), (FAILED, ERROR)]
)
def test_every_difference_is_a_fault_unless_it_is_named(bare: tuple[str, str], handle: tuple[str, str]) -> None:
    sides = Sides({"t::one[a]": bare, "t::two": PASSED}, {"t::one[a]": handle, "t::two": PASSED})
    (fault,) = compare("s", sides, [], whole=True).faults
    assert fault.startswith(f"t::one[a]: {bare[0]} on the bare driver, {handle[0]} through the handle")
    found = compare("s", sides, [entry("*::one[a]")], whole=True)
    assert (found.faults, found.named) == ([], ["t::one[a]"])


@pytest.mark.parametrize("outcome", [PASSED, FAILED, SKIPPED])
def test_what_both_sides_do_is_no_fault(outcome: tuple[str, str]) -> None:
    assert compare("s", Sides({"one": outcome}, {"one": outcome}), [], whole=True).faults == []


def test_a_test_that_one_side_does_not_have_is_a_fault() -> None:
    (fault,) = compare("s", Sides({"one": PASSED, "two": PASSED}, {"one": PASSED}), [], whole=True).faults
    assert fault.startswith("two: passed on the bare driver, missing through the handle")


def test_an_entry_that_no_longer_differs_is_a_fault() -> None:
    sides = Sides({"one": PASSED}, {"one": PASSED})
    (fault,) = compare("s", sides, [entry("one")], whole=False).faults
    assert "no test of this name differs any more" in fault


def test_each_pattern_of_an_entry_must_differ() -> None:
    sides = Sides({"one": PASSED, "two": PASSED}, {"one": FAILED, "two": PASSED})
    (fault,) = compare("s", sides, [entry("one", "two")], whole=False).faults
    assert fault.startswith("two:")


def test_an_entry_whose_tests_were_not_chosen_is_a_fault_only_in_a_whole_run() -> None:
    sides = Sides({"one": PASSED}, {"one": PASSED})
    assert compare("s", sides, [entry("elsewhere*")], whole=False).faults == []
    assert len(compare("s", sides, [entry("elsewhere*")], whole=True).faults) == 1
    assert compare("another", sides, [entry("one")], whole=True).faults == []


def test_every_entry_of_the_file_has_a_reason_and_a_suite() -> None:
    assert {entry.suite for entry in known(DIFFERENCES)} <= {suite.id for suite in SUITES}


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "differences.toml"
    file.write_text('[[difference]]\nsuite = "s"\ntests = ["one"]\nreason = " "\n')
    with pytest.raises(ValueError, match="no reason"):
        known(file)
