"""A plugin of pytest's: the table of the suites at the end of a run, bare beside the handle."""

from __future__ import annotations

from typing import Any, Final

import pytest

#: The property of a test's report that has its row.
ROW: Final = "suite"
_HEAD: Final = ("suite", "driver", "tests", "passed bare", "through the handle", "named differences", "s")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: list[tuple[Any, ...]] = [_HEAD]
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                rows += [tuple(value) for name, value in report.user_properties if name == ROW]
    if len(rows) > 1:
        widths = [max(len(str(row[column])) for row in rows) for column in range(len(_HEAD))]
        terminalreporter.section("suites of others, on the bare driver and through the handle")
        for row in rows:
            terminalreporter.line("  ".join(str(value).ljust(width) for value, width in zip(row, widths, strict=True)))
