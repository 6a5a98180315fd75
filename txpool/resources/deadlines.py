"""How long a transaction waits for its databases: a server may hang, and its host still answer for it.

What is not awaited any more is not undone by that. A vote that did not come in time is a vote to roll back, and what
was told to commit or roll back is left to recovery.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

#: Seconds, after the timeout has cancelled what executes, for the database to say so.
CANCEL_GRACE: Final = 1.0
#: Seconds that phase two has at least, however late it begins.
LEAST_PHASE_TWO: Final = 1.0


class Deadlines:
    """One transaction's. `deadline` is its timeout's, by the monotonic clock, `wait` seconds; None is for ever."""

    __slots__ = ("_deadline", "_wait")

    def __init__(self, deadline: float | None = None, wait: float | None = None) -> None:
        self._deadline = deadline
        self._wait = wait

    def before_decision(self) -> float | None:
        """Until when an answer is awaited that comes before the decision."""
        return None if self._deadline is None else self._deadline + CANCEL_GRACE

    def after_decision(self) -> float | None:
        """Until when, from now, the answer to what ends a branch is awaited."""
        if self._wait is None:
            return None
        now = monotonic()
        if self._deadline is None:
            return now + self._wait
        return now + min(self._wait, max(self._deadline - now, LEAST_PHASE_TWO))


NO_DEADLINES: Final = Deadlines()
