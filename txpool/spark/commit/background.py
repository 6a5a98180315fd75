"""A base class for a thread that runs for the length of a `with` block."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class BackgroundThread(ABC):
    """Runs `_run` in a thread for the length of a `with` block. `_run` must return soon after `_stopped` is set."""

    def __init__(self, name: str, kind: type[threading.Thread] = threading.Thread) -> None:
        self._stopped = threading.Event()
        self._thread = kind(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...
