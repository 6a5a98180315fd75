"""How long a transaction waits for its databases: a server may hang while its host still acknowledges packets.

To stop waiting undoes nothing. A vote that did not come in time is a vote to roll back. A branch that did not answer
its commit or rollback in time is left to recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import TIMEOUT_MAX
from time import monotonic
from typing import Any, Final, Protocol
from weakref import ref

from txpool.errors import OperationalError

#: Seconds that a database has to answer after the timeout has cancelled its statement.
CANCEL_GRACE: Final = 1.0
#: Seconds that a thread waits for another's statement, however late.
_LEAST_WAIT: Final = 0.1
#: Seconds that phase two waits at least, however late it begins.
LEAST_PHASE_TWO: Final = 1.0


class ReplyTimeout(OperationalError):
    """No answer came in time: whether the server executes the command is not known."""


class HeldByAnother(OperationalError):
    """Another task or thread holds what the end of a transaction waits for, and the wait is over."""

    def __init__(self, message: str, while_idle: Callable[[Callable[[], object]], bool] | None = None) -> None:
        super().__init__(message)
        #: Calls a function while that task does nothing with it; False if it does. None if nobody can tell.
        self.while_idle = while_idle


@cache
def reply_timeout(of_driver: Any) -> type[ReplyTimeout]:
    """The class of a `ReplyTimeout` that is an error of the driver's, too. It can be pickled."""
    return type(ReplyTimeout.__name__, (of_driver, ReplyTimeout), {"__reduce__": _reduced})


def _reduced(error: ReplyTimeout) -> tuple[Any, ...]:
    notes = getattr(error, "__notes__", None)
    return _again, (type(error).__mro__[1], error.args), {"__notes__": notes} if notes else None


def _again(of_driver: Any, args: tuple[Any, ...]) -> ReplyTimeout:
    made: ReplyTimeout = reply_timeout(of_driver)(*args)
    return made


_step_end: ContextVar[float | None] = ContextVar("step_end", default=None)


@contextmanager
def step_until(until: float) -> Iterator[None]:
    """Within the block, drivers connect and wait at most until then, by the monotonic clock: a step of recovery."""
    token = _step_end.set(until)
    try:
        yield
    finally:
        _step_end.reset(token)


def in_step() -> bool:
    """Whether this thread is within a step: then a driver's new connection keeps to it."""
    return _step_end.get() is not None


def within_step(until: float | None = None) -> float | None:
    """The earlier one of `until` and the end of this thread's step. OperationalError if the step is over already."""
    end = _step_end.get()
    if end is None:
        return until
    if monotonic() >= end:
        raise OperationalError("the time for this step of recovery is over, and nothing more is sent")
    return end if until is None else min(until, end)


def within_step_timeout(timeout: float | None = None) -> float | None:
    """As `within_step`, in seconds from now."""
    now = monotonic()
    until = within_step(None if timeout is None else now + timeout)
    return timeout if until is None else max(until - now, 0.0)


class HasDeadline(Protocol):
    """A transaction in which threads and tasks wait for each other."""

    gtrid: str
    deadlines: Deadlines

    @property
    def ended(self) -> bool: ...

    def require_active(self) -> None: ...


class WaitForOthers:
    """The seconds that a thread or task still waits for what another holds of a transaction; -1 is for ever.

    Called once they are over, it raises what the transaction raises then, or HeldByAnother. It waits a little also if
    they are over as it begins: most statements end at once.
    """

    __slots__ = ("_transaction",)

    def __init__(self, transaction: HasDeadline) -> None:
        self._transaction = ref(transaction)

    def __call__(self, waited: bool) -> float:
        transaction = self._transaction()
        until = None if transaction is None else transaction.deadlines.before_decision()
        if transaction is None or until is None:
            return -1
        left = until - monotonic()
        if left > 0 or not waited:
            return min(max(left, _LEAST_WAIT), TIMEOUT_MAX)
        if not transaction.ended:
            transaction.require_active()
        raise HeldByAnother(
            f"{transaction.gtrid} has waited until its deadline for a connection that another thread or task holds"
        )


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
        """When to stop waiting for an answer of phase two that begins now, by the monotonic clock; None is never.

        In a step of recovery, at the latest when the step is over.
        """
        end = _step_end.get()
        if self._wait is None:
            return end
        now = monotonic()
        wait = self._wait if self._deadline is None else min(self._wait, max(self._deadline - now, LEAST_PHASE_TWO))
        return now + wait if end is None else min(now + wait, end)


NO_DEADLINES: Final = Deadlines()
