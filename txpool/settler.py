"""Goes on trying, in the background: to find the truth of what is in doubt, and to tell the log what has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from txpool.coordinator import Coordinator
from txpool.unit import Result

logger = logging.getLogger("txpool")

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class Settler:
    """One daemon thread while anything is in doubt, none otherwise. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Coordinator, Callable[[Result], object]]] = []
        self._running = False
        self._closed = threading.Event()

    @property
    def pending(self) -> int:
        """How many transactions are still in doubt."""
        return len(self._waiting)

    def add(self, coordinator: Coordinator, settled: Callable[[Result], object]) -> None:
        """Settle this one when it can be; `settled` hears the result, in the settler's thread."""
        with self._lock:
            self._waiting.append((coordinator, settled))
            if not self._running and not self._closed.is_set():
                self._running = True
                threading.Thread(target=self._run, name="txpool-settler", daemon=True).start()

    def close(self) -> None:
        """Stop asking: what is left in doubt is recovery's, once this process is gone."""
        self._closed.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.wait(pause):
            pause = min(2 * pause, _LONGEST_PAUSE)
            for item in list(self._waiting):
                result = item[0].settle()
                if result.settled:
                    logger.warning("%s was not at its end and is settled now: %s", result.gtrid, result.outcome.value)
                    item[1](result)
                    with self._lock:
                        self._waiting.remove(item)
                    pause = _FIRST_PAUSE
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
