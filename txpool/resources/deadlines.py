"""How long a transaction waits for its databases: a server may hang while its host still acknowledges packets.

To stop waiting undoes nothing. A vote that did not come in time is a vote to roll back. A branch that did not answer
its commit or rollback in time is left to recovery.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

#: Seconds that a database has to answer after the timeout has cancelled its statement.
CANCEL_GRACE: Final = 1.0
#: Seconds that phase two waits at least, however late it begins.
LEAST_PHASE_TWO: Final = 1.0


class Deadlines:
    """The deadlines of one transaction. Immutable.

    `deadline` is when its timeout ends, by the monotonic clock; `wait` is transaction.phase-two-wait, in seconds. None
    is for ever.
    """

    __slots__ = ("_deadline", "_wait")

    def __init__(self, deadline: float | None = None, wait: float | None = None) -> None:
        self._deadline = deadline
        self._wait = wait

    def before_decision(self) -> float | None:
        """When to stop waiting for an answer of phase one, by the monotonic clock; None is never."""
        return None if self._deadline is None else self._deadline + CANCEL_GRACE

    def after_decision(self) -> float | None:
        """When to stop waiting for an answer of phase two that begins now, by the monotonic clock; None is never."""
        if self._wait is None:
            return None
        now = monotonic()
        if self._deadline is None:
            return now + self._wait
        return now + min(self._wait, max(self._deadline - now, LEAST_PHASE_TWO))


NO_DEADLINES: Final = Deadlines()
