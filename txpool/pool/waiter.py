"""A thread, or a task, that waits for a connection."""

from __future__ import annotations

from copy import copy
from threading import Lock
from typing import Generic

from txpool import loops
from txpool.pool.pooled import C, Pooled


class Waiter(Generic[C]):
    """A waiting thread. A raw lock is the cheapest one-shot event."""

    __slots__ = ("failure", "pooled", "woken")

    def __init__(self) -> None:
        self.pooled: Pooled[C] | None = None
        #: Why there will be none.
        self.failure: Exception | None = None
        self.woken: Lock | loops.Signal
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
