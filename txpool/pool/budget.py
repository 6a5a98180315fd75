"""The time that one take() has, and how much of it the check of an idle connection, or a connect, may use."""

from __future__ import annotations

from enum import Enum, auto
from time import monotonic
from typing import Final

#: Seconds that a check has at least, so that a short `timeout` of take() does not make a live connection look dead.
LEAST_CHECK: Final = 0.25
#: Seconds that a connect has at least, unless the time was spent on connections that hang.
LEAST_CONNECT: Final = 2.0


class CheckResult(Enum):
    """The result of checking an idle connection; SILENT if it has not answered in time."""

    ALIVE = auto()
    DEAD = auto()
    SILENT = auto()


class TakeBudget:
    """The `wait` seconds of one take(), from now on.

    Checks share the first half of the time that is left when the first begins, so that connections that hang leave time
    for a connect. One check uses at most half of their time, so that there is a second one.
    """

    __slots__ = ("_checks_until", "_until", "silent", "wait")

    def __init__(self, wait: float) -> None:
        self.wait = wait
        self._until = monotonic() + wait
        self._checks_until: float | None = None
        #: How many connections did not answer.
        self.silent = 0

    def left(self) -> float:
        """Seconds that are left; negative once time is up."""
        return self._until - monotonic()

    def check(self, timeout: float) -> float:
        """Seconds for a check, at most `timeout`."""
        now = monotonic()
        if self._checks_until is None:
            self._checks_until = now + (self._until - now) / 2
        return min(timeout, max((self._checks_until - now) / 2, LEAST_CHECK))

    def has_checks(self) -> bool:
        """Whether there is time for another check."""
        return self._checks_until is None or monotonic() < self._checks_until

    def connect(self) -> float:
        """Seconds for a connect."""
        return max(self.left(), LEAST_CHECK if self.silent else LEAST_CONNECT)
