"""How long a take() may wait, and the thread or task that waits for a connection."""

from __future__ import annotations

from copy import copy
from enum import Enum, auto
from threading import Lock
from time import monotonic
from typing import Final, Generic

from txpool import loops
from txpool.pool.pooled import C, Pooled

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


class Waiter(Generic[C]):
    """A waiting thread. A raw lock is the cheapest one-shot event."""

    __slots__ = ("failure", "pooled", "woken")

    def __init__(self) -> None:
        self.pooled: Pooled[C] | None = None
        #: Why there will be none.
        self.failure: Exception | None = None
        self.woken: Lock | loops.OneShotEvent
        if loops.used and (call := loops.current()) is not None:
            self.woken = call.signal()
        else:
            self.woken = Lock()
            self.woken.acquire()

    def take_failure(self) -> Exception:
        """Why there will be none; only once, since the error's traceback leads to who has raised it."""
        failure, self.failure = self.failure, None
        assert failure is not None  # noqa: S101 - for mypy: the caller has looked
        return failure

    def fail(self, error: Exception) -> None:
        """Wake it with a copy of the error, since each thread adds to its own."""
        try:
            self.failure = copy(error)
        except Exception:
            self.failure = error
        self.woken.release()
