"""The kit's table is readable in 80 columns, however many datasources there are."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from txpool.conformance.cases.case import CaseResult, Verdict
from txpool.conformance.kit import CASES, Conformance
from txpool.conformance.report import print_table


@pytest.mark.parametrize("name", ["orders", "a-name-of-thirty-two-characters--"])
@pytest.mark.parametrize("count", [1, 5, 6, 11])
def test_no_word_is_broken(count: int, name: str) -> None:
    results = tuple(CaseResult(case, Verdict.SKIPPED, "why") for case in CASES[1:])
    runs = [Conformance(name, "last-resource", "sqlite:///x", results, ("a table",), "trouble")] * count
    written = io.StringIO()
    print_table(Console(file=written, width=80), runs)
    tables, _, reasons = written.getvalue().partition(f"{name}: could not be run: trouble")
    assert max(map(len, tables.splitlines())) <= 80
    assert tables.count("skipped") == count * len(results)
    assert tables.count("not run") == count
    assert reasons.count("left behind, remove it by hand: a table") == count
    assert reasons.count("why") == count * len(results)
