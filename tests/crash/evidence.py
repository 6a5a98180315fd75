"""What a run of the crash suite has done, counted where it is done, and told in one block at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

from txpool import failpoints


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
        self._counts: Counter[Count] = Counter()

    def add(self, what: Count, times: int = 1) -> None:
        """It was done so many times more."""
        self._counts[what] += times

    def hit(self, points: Iterable[str]) -> None:
        """These failpoints were reached."""
        self._hit.update(points)

    def __str__(self) -> str:
        said = [f"{len(self._hit)} of {len(failpoints.POINTS)} failpoints hit"]
        said += [self._said(what) for what in Count if what not in _BANK]
        return f"{', '.join(said)}; bank: {', '.join(map(self._said, _BANK))}"

    def _said(self, what: Count) -> str:
        return f"{self._counts[what]:,} {what.value}"
