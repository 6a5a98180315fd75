"""The suite is itself tested: with any rule of the protocol left out, a named check turns red.

Of the tests of real things, each of which is a process of its own with servers and at times a Spark, a sample runs by
default, another one with each seed (TXPOOL_CRASH_SEED); with TXPOOL_CRASH_FULL=1 all of them.
"""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.crash.evidence import SEED
from tests.crash.explorer.explore import Explorer
from tests.crash.explorer.trace import trace
from tests.crash.mutating import Edit, Mutation, Stale, applied
from tests.crash.mutations import MUTATIONS
from tests.support.repository import ROOT
from tests.support.sampling import FULL
from txpool.xid import parse

_LIMIT = 400_000
_REAL = [mutation for mutation in MUTATIONS if mutation.test]
_SAMPLE = 4
if not FULL:
    _REAL = random.Random(SEED).sample(_REAL, _SAMPLE)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if m.scenario is not None], ids=str)
def test_the_explorer_finds_what_breaks_without_the_rule(mutation: Mutation) -> None:
    assert mutation.scenario is not None
    with applied(mutation.edits):
        explorer = Explorer(mutation.scenario, frozenset({mutation.flaw} - {""}))
        finding = explorer.search(_LIMIT, mutation.found)
        assert finding.problem, f"nothing was found in this: {finding}"
        print(f"{mutation}: {finding}\n{trace(explorer, finding)}")


@pytest.mark.costly
@pytest.mark.parametrize("mutation", _REAL, ids=str)
def test_a_test_of_the_real_thing_turns_red_without_the_rule(mutation: Mutation) -> None:
    command = [sys.executable, "-m", "tests.crash.mutations", mutation.rule]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 1, f"{mutation.test} should be red, and pytest ended {done.returncode}:\n{done.stdout}"
    assert "1 failed" in done.stdout, done.stdout + done.stderr


def test_every_rule_is_left_out_once() -> None:
    rules = {mutation.rule for mutation in MUTATIONS}
    assert {str(number) for number in (*range(1, 39), 40)} - rules == set()
    assert all(mutation.scenario is not None or mutation.test for mutation in MUTATIONS)


def test_every_edit_fits_the_code() -> None:
    """Of the tests of real things only a sample runs."""
    for mutation in MUTATIONS:
        for edit in (*mutation.edits, *mutation.real):
            with applied([edit]):
                pass


def test_an_edit_that_does_not_fit_the_code_any_more_says_so() -> None:
    with pytest.raises(Stale, match="parse"), applied([Edit("txpool.xid:parse", "no such text", "")]):
        pass


def test_an_edit_is_seen_by_every_reference_and_is_put_back() -> None:
    name = "txp1:node:aaaaaaaaaaaa:1:0:orders:L"
    assert parse(name) is not None
    with applied([Edit("txpool.xid:parse", "match is None", "True")]):
        assert parse(name) is None
    assert parse(name) is not None
