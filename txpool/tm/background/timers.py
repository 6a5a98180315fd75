"""Timeouts of transactions: one daemon thread for all of them, started by the first that has one."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from txpool.locks import RLock

logger = logging.getLogger("txpool")


class Timer:
    """A callback that will be called once, unless it is cancelled first."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Do not call it. Does nothing if it has been called."""
        self.callback = None


class Timers:
    """Calls callbacks after a time by the monotonic clock. Thread-safe; a callback's errors are logged."""

    def __init__(self) -> None:
        self._lock = RLock()
        #: Only its lock is entered: an interrupt in the `__enter__` of a condition leaves that held.
        self._changed = threading.Condition(self._lock)
        self._due: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call it in so many seconds, in the timers' own thread."""
        timer = Timer(callback)
        with self._lock:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), timer))
            if self._thread is None or not self._thread.is_alive():  # an interrupt came before it was started
                self._thread = threading.Thread(target=self._run, name="txpool-timers", daemon=True)
                self._thread.start()
            self._changed.notify()
        return timer

    def _run(self) -> None:
        while True:
            callback = self._next().callback
            if callback is not None:
                try:
                    callback()
                except Exception:
                    logger.exception("a timeout's callback failed")

    def _next(self) -> Timer:
        with self._lock:
            while True:
                while True:  # not `while` with a condition: see tests/unit/test_interrupts.py
                    if not self._due or self._due[0][2].callback is not None:
                        break
                    heapq.heappop(self._due)
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
