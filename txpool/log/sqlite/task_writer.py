"""The thread that writes into the log what tasks of event loops have queued: no fsync holds a loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from queue import Empty, SimpleQueue
from threading import Thread

from txpool.loops import TaskCall


class TaskWriter:
    """A thread, once a task writes. `write` writes what is queued; false if there will be nothing more."""

    def __init__(self, write: Callable[[], bool]) -> None:
        self._write = write
        self._thread: Thread | None = None
        self._told: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = thread = Thread(target=Context().run, args=(self._run,), name="txpool-log", daemon=True)
            thread.start()  # two loops at once start two, which does no harm

    def tell_after_turn(self, call: TaskCall) -> None:
        """Something is queued: it is written with what other tasks of the loop queue in this turn or the next ones."""
        call.after_turn(self.tell)

    def tell(self) -> None:
        """Something is queued, or there will be nothing more."""
        self._told.put(None)

    def _run(self) -> None:
        while True:
            self._told.get()
            with suppress(Empty):  # what is queued by now is written together
                while True:
                    self._told.get_nowait()
            if not self._write():
                break
        self.tell()  # for another one
