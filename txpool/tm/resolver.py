"""Goes on trying, in the background: to find the truth of what is in doubt, and to tell the log what has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic

from txpool.tm.commit_request import Result
from txpool.tm.coordinator import Coordinator

logger = logging.getLogger("txpool")

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_LEFT = "%s is not at its end, and this process asks no more: it is left to recovery"


class Resolver:
    """One daemon thread while anything is in doubt, none otherwise. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Coordinator, Callable[[Result], object]]] = []
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def pending(self) -> int:
        """How many transactions are still in doubt."""
        return len(self._waiting)

    def add(self, coordinator: Coordinator, resolved: Callable[[Result], object]) -> None:
        """Settle this one when it can be; `settled` hears the result, in the settler's thread."""
        with self._lock:
            if self._closed.is_set():
                logger.warning(_LEFT, coordinator.gtrid)
                return
            self._waiting.append((coordinator, resolved))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="txpool-settler", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending: `close` says what is left
                    return
                self._thread = thread

    def stop(self) -> None:
        """Let its thread try each once more, now, and end. What is left in doubt is recovery's, once this process is
        gone.
        """
        self._closed.set()

    def close(self, until: float) -> None:
        """The same, and wait for that until so late by the monotonic clock; the log names what is left."""
        self.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(until - monotonic(), 0))
        with self._lock:
            left, self._waiting = self._waiting, []
        for coordinator, _ in left:
            logger.warning(_LEFT, coordinator.gtrid)

    def _run(self) -> None:
        pause, last = _FIRST_PAUSE, False
        while not last:
            last = self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            for item in list(self._waiting):
                result = item[0].retry()
                if result.complete:
                    logger.warning(
                        "%s was not at its end and is settled now: %s",
                        result.gtrid,
                        result.outcome.value,
                        extra={"gtrid": result.gtrid},
                    )
                    item[1](result)
                    with self._lock:
                        if item in self._waiting:  # else it came too late for whoever has closed
                            self._waiting.remove(item)
                    pause = _FIRST_PAUSE
            with self._lock:
                if last or not self._waiting:
                    self._thread = None
                    return
