"""The resolver: a thread that goes on to resolve transactions in doubt, and to tell the log what has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic

from txpool.locks import Lock
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.request import Result

logger = logging.getLogger("txpool")

#: Seconds between attempts: the first pause, and what doubling it ends at.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_LEFT_TO_RECOVERY = "%s has not ended, and this process does not try any longer: it is left to recovery"


class Resolver:
    """One daemon thread while anything is in doubt, none otherwise. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: list[tuple[Coordinator, Callable[[Result], object]]] = []
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def pending(self) -> int:
        """How many transactions have not ended yet."""
        return len(self._waiting)

    def add(self, coordinator: Coordinator, resolved: Callable[[Result], object]) -> None:
        """Retry this transaction until it has ended, and then call `resolved` with the result, in the own thread."""
        with self._lock:
            if self._closed.is_set():
                logger.warning(_LEFT_TO_RECOVERY, coordinator.gtrid)
                return
            if not self._has(coordinator):  # after an interrupt it is added again
                self._waiting.append((coordinator, resolved))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="txpool-resolver", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending: `close` logs what is left
                    return
                self._thread = thread

    def _has(self, coordinator: Coordinator) -> bool:
        return any(waiting is coordinator for waiting, _ in self._waiting)

    def stop(self) -> None:
        """Let its thread try each once more, now, and end. What is left then is for recovery."""
        self._closed.set()

    def close(self, until: float) -> None:
        """`stop`, and wait for the thread until that time of the monotonic clock; logs what is left."""
        self.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(until - monotonic(), 0))
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for coordinator, _ in waiting:
            logger.warning(_LEFT_TO_RECOVERY, coordinator.gtrid)

    def _run(self) -> None:
        pause, last = _FIRST_PAUSE, False
        while not last:
            last = self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            for item in list(self._waiting):
                result = item[0].retry()
                if result.complete:
                    logger.warning(
                        "%s had not ended, and is resolved now: %s",
                        result.gtrid,
                        result.outcome.value,
                        extra={"gtrid": result.gtrid},
                    )
                    item[1](result)
                    with self._lock:
                        if item in self._waiting:  # `close` has taken it out if it came too late
                            self._waiting.remove(item)
                    pause = _FIRST_PAUSE
            with self._lock:
                if last or not self._waiting:
                    self._thread = None
                    return
