"""What a run of the crash suite has done, counted where it is done, and told in one block at its end.

A plugin of pytest's, since a run may have several processes: each hands over what it has counted to the first.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Any

import pytest

from txpool import failpoints

#: What samples are drawn by: the same in all processes of a run, which inherit it.
SEED = os.environ.setdefault("TXPOOL_CRASH_SEED", secrets.token_hex(4))


class Count(Enum):
    """What is counted; the value is how the block calls it."""

    STATES = "states explored"
    IO_FAULTS = "I/O faults"
    IMAGES = "power losses"
    NETWORK_FAULTS = "network faults"
    KILLS = "kills survived"
    TRANSFERS = "transfers"
    BANK_KILLS = "kills"
    RECOVERIES = "recoveries"


_BANK = (Count.TRANSFERS, Count.BANK_KILLS, Count.RECOVERIES)


class Evidence:
    """The counts of one run of pytest. A test adds what it has seen come out right."""

    def __init__(self) -> None:
        self._hit: set[str] = set()
        self._counts: Counter[str] = Counter()
        #: Whether tests were left out by the seed.
        self.sampled = False

    def add(self, what: Count, times: int = 1) -> None:
        """It was done so many times more."""
        self._counts[what.value] += times

    def hit(self, points: Iterable[str]) -> None:
        """These failpoints were reached."""
        self._hit.update(points)

    def __bool__(self) -> bool:
        return bool(self._hit or self._counts)

    def __str__(self) -> str:
        said = [f"{len(self._hit)} of {len(failpoints.POINTS)} failpoints hit"]
        said += [self._said(what) for what in Count if what not in _BANK]
        return f"{', '.join(said)}; bank: {', '.join(map(self._said, _BANK))}"

    def _said(self, what: Count) -> str:
        return f"{self._counts[what.value]:,} {what.value}"

    def handed_over(self) -> dict[str, Any]:
        """As plain data, for another process to take over."""
        return {"hit": [*self._hit], "counts": {**self._counts}, "sampled": self.sampled}

    def take_over(self, other: dict[str, Any]) -> None:
        """Add what another process has handed over."""
        self._hit.update(other["hit"])
        self._counts.update(other["counts"])
        self.sampled |= other["sampled"]


_EVIDENCE = pytest.StashKey[Evidence]()
_HANDED_OVER = "txpool-crash-evidence"


@pytest.fixture(scope="session")
def evidence(pytestconfig: pytest.Config) -> Evidence:
    """Where a test counts what it has done, for the block that ends the run."""
    return evidence_of(pytestconfig)


def evidence_of(config: pytest.Config) -> Evidence:
    """What is counted in this process."""
    return config.stash.setdefault(_EVIDENCE, Evidence())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand over what a worker has counted."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_HANDED_OVER] = evidence_of(session.config).handed_over()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker has counted; one that crashed has left nothing."""
    if _HANDED_OVER in getattr(node, "workeroutput", {}):
        evidence_of(node.config).take_over(node.workeroutput[_HANDED_OVER])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell what the crash tests have done."""
    evidence = evidence_of(config)
    if evidence:
        terminalreporter.line(f"crash evidence: {evidence}")
    if evidence.sampled:
        terminalreporter.line(f"a part of the tests, chosen by TXPOOL_CRASH_SEED={SEED}")
