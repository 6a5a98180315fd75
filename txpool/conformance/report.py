"""The kit's results as a table, a column for each database, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import CASES, Conformance

_STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.SKIPPED: "yellow", Verdict.INAPPLICABLE: "dim"}

#: The columns of a table, at least: of the cases, and of a datasource.
_CASE_WIDTH, _LEAST = 28, 7
_GAP = 3  # characters between two columns


def print_table(console: Console, runs: Sequence[Conformance]) -> None:
    """A row for each case and a column for each datasource, then the reasons.

    If the console is too narrow for all datasources, it is several tables: of five each in 80 columns.
    """
    room = console.width - _CASE_WIDTH
    at_once = max(room // (_LEAST + _GAP), 1)
    for first in range(0, len(runs), at_once):
        some = runs[first : first + at_once]
        longest = max(len(word) for run in some for word in (run.name, run.mode))
        console.print(_table(some, max(_LEAST, min(longest, room // len(some) - _GAP))))
    for line, style in _reasons(runs):
        console.print(Text(line, style), soft_wrap=True)


def _table(runs: Sequence[Conformance], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("case", overflow="fold", min_width=_CASE_WIDTH)
    for run in runs:
        table.add_column(Text(f"{run.name}\n{run.mode}"), overflow="fold", width=width)
    for case in CASES:
        cells = [Text(case.title)]
        for run in runs:
            verdict = next((each.verdict for each in run.results if each.case is case), None)
            cells.append(Text("not run", "yellow") if verdict is None else Text(verdict.value, _STYLES[verdict]))
        table.add_row(*cells)
    return table


def _reasons(runs: Sequence[Conformance]) -> list[tuple[str, str]]:
    lines = []
    for run in runs:
        if run.trouble:
            lines.append((f"{run.name}: could not be run: {run.trouble}", "bold red"))
            lines += _indented(run.traceback)
        for verdict in (Verdict.FAILED, Verdict.SKIPPED):
            for each in run.results:
                if each.verdict is verdict:
                    lines.append((f"{run.name}, {each.case.title}: {each.reason}", _STYLES[verdict]))
                    lines += _indented(each.traceback)
        if run.note:
            lines.append((f"{run.name}: {run.note}", "yellow"))
        lines += [(f"{run.name}: left behind, remove it by hand: {each}", "bold red") for each in run.left]
    return lines


def _indented(traceback: str) -> list[tuple[str, str]]:
    return [(f"    {line}", "dim") for line in traceback.splitlines()]


def as_dict(runs: Sequence[Conformance]) -> dict[str, Any]:
    """The results as plain data, for JSON."""
    return {
        "datasources": [
            {
                "name": run.name,
                "mode": run.mode,
                "url": run.url,
                "trouble": run.trouble,
                "traceback": run.traceback,
                "left": list(run.left),
                "note": run.note,
                "cases": [
                    {
                        "case": each.case.name,
                        "verdict": each.verdict.name.lower(),
                        "reason": each.reason,
                        "traceback": each.traceback,
                    }
                    for each in run.results
                ],
            }
            for run in runs
        ]
    }
