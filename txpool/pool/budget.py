"""One borrower's time: what is left, and how much of it a look at an idle connection, or a connect, may take."""

from __future__ import annotations

from enum import Enum, auto
from time import monotonic
from typing import Final

#: Seconds that a look has, however few are left: that somebody has no patience proves no connection dead.
LEAST_CHECK: Final = 0.25
#: The same for a connect, unless the time was lost to connections that hang.
LEAST_CONNECT: Final = 2.0


class CheckResult(Enum):
    """What became of a look at an idle connection."""

    ALIVE = auto()
    DEAD = auto()
    SILENT = auto()


class TakeBudget:
    """`wait` seconds from now on. Looks share the first half of what is left when they begin, so that those which hang
    leave time for a connect; one takes half of that at most, so that there is a second.
    """

    __slots__ = ("_checks_until", "_until", "silent", "wait")

    def __init__(self, wait: float) -> None:
        self.wait = wait
        self._until = monotonic() + wait
        self._checks_until: float | None = None
        #: How many connections did not answer.
        self.silent = 0

    def left(self) -> float:
        return self._until - monotonic()

    def check(self, timeout: float) -> float:
        """Seconds for a look, at most `timeout`."""
        now = monotonic()
        if self._checks_until is None:
            self._checks_until = now + (self._until - now) / 2
        return min(timeout, max((self._checks_until - now) / 2, LEAST_CHECK))

    def has_checks(self) -> bool:
        """Whether there is time for another look."""
        return self._checks_until is None or monotonic() < self._checks_until

    def connect(self) -> float:
        """Seconds for a connect."""
        return max(self.left(), LEAST_CHECK if self.silent else LEAST_CONNECT)
