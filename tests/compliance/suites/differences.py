"""The differences between a suite's two sides, and the file that names those that are known, with their reasons."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.compliance.suites.running import Sides

#: The file.
DIFFERENCES: Final = Path(__file__).parents[1] / "differences.toml"


@dataclass(frozen=True)
class Known:
    """An entry of the file: the tests of a suite that may differ, and why."""

    suite: str
    tests: tuple[str, ...]
    reason: str


def known(path: Path) -> list[Known]:
    """The file's entries; ValueError for one without a reason."""
    entries = []
    for each in tomllib.loads(path.read_text())["difference"]:
        entry = Known(each["suite"], tuple(each["tests"]), each["reason"].strip())
        if not entry.reason or not entry.tests:
            raise ValueError(f"{path}: a difference of {entry.suite} has no reason, or names no tests")
        entries.append(entry)
    return entries


@dataclass(frozen=True)
class Comparison:
    """What a comparison has found: faults, and the tests that differ as an entry says."""

    faults: list[str]
    named: list[str]


def compare(suite: str, sides: Sides, entries: list[Known], *, whole: bool) -> Comparison:
    """Compare test by test. An entry that names no test that differs is a fault, too.

    Unless the suite ran as a `whole`, an entry whose tests did not run is left alone.
    """
    differing = {}
    for test in sorted({*sides.bare, *sides.handle}):
        bare, handle = sides.bare.get(test, ("missing", "")), sides.handle.get(test, ("missing", ""))
        if bare[0] != handle[0]:
            differing[test] = f"{test}: {bare[0]} on the bare driver, {handle[0]} through the handle. {handle[1]}"
    faults, named = [], set()
    for entry in entries:
        if entry.suite != suite:
            continue
        for pattern in entry.tests:
            expression = re.compile(".*".join(map(re.escape, pattern.split("*"))))
            found = [test for test in differing if expression.fullmatch(test)]
            ran = whole or any(map(expression.fullmatch, sides.bare))
            named.update(found)
            if not found and ran:
                faults.append(f"{pattern}: no test of this name differs any more, but the file says: {entry.reason}")
    faults += [text for test, text in differing.items() if test not in named]
    return Comparison(faults, sorted(named))
