"""Waits for what another thread, another process or a server is about to do."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Long enough for a busy machine.
SECONDS = 60.0


def until(
    condition: Callable[[], object],
    seconds: float = SECONDS,
    what: str = "it has not come about",
    *,
    pause: float = 0.002,
) -> None:
    """Wait until the condition is true; AssertionError after so many seconds, which says `what` was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(pause)
