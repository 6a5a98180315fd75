"""Opening connections in the slots of a pool, and what is said if that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import current_thread
from time import monotonic
from typing import Generic

from txpool.errors import OperationalError, PoolClosed, PoolTimeout, described
from txpool.metrics import HISTOGRAMS, instruments
from txpool.metrics.catalogue import CREATE_SECONDS
from txpool.pool.listeners import MaintenanceThread
from txpool.pool.pooled import C, Pooled
from txpool.pool.report import timeout_message
from txpool.pool.state import PoolState
from txpool.pool.waiting import TakeBudget

_observe = HISTOGRAMS[CREATE_SECONDS].observe


class Opener(Generic[C]):
    """Opens the connections of one pool, in one process. Thread-safe. Each of `opened` is called after a connect."""

    def __init__(
        self,
        state: PoolState[C],
        opened: Iterable[Callable[[], object]],
        name: str,
        *,
        enabled: bool,
        reset_always: bool,
    ) -> None:
        #: The last error of connecting, until a connect succeeds.
        self.failure: str | None = None
        self._state = state
        self._opened = opened
        self._name = name
        self._enabled = enabled
        self._reset_always = reset_always

    def open(self, slot: Pooled[C], timeout: float) -> Pooled[C]:
        """Open a connection in a reserved slot, which is free again if that fails."""
        state = self._state
        state.refuse_finaliser()
        started = monotonic()
        try:
            if not state.closed:
                slot.open(timeout)
        except BaseException as error:
            if isinstance(error, Exception) or not isinstance(current_thread(), MaintenanceThread):
                self._failed(slot, error)
                raise
            # In the pool's own thread nobody is interrupted, and what it does for the others must go on.
            failed = OperationalError(f"connecting ended with {type(error).__name__}")
            self._failed(slot, failed)
            raise failed from error
        try:
            if state.closed:
                raise self.closed()
            if not slot.separate:
                self.failure = None
            if state.waiters:  # those who were kept from trying: the server is there, whoever has logged in
                state.serve_waiters()
            slot.dirty = self._reset_always
            if not self._enabled or slot.separate:
                slot.expires = 0.0  # so that its give-back closes it
            seconds = monotonic() - started
            state.count("created")
            state.count("create_seconds", seconds)
            if instruments.armed:
                _observe(seconds, self._name)
            if state.listeners:
                state.notify_holding(slot, "connection_opened", slot.raw, seconds)
            for call in self._opened:
                call()
        except BaseException:
            state.give_up(slot)
            raise
        return slot

    def _failed(self, slot: Pooled[C], error: BaseException) -> None:
        """Free the slot; note why, unless it is an interrupt, which says nothing about the server."""
        state = self._state
        if not isinstance(error, Exception):
            state.destroy(slot)
            return
        state.count("connect_failures")
        if slot.separate:  # another user's wrong password says nothing about the next connect
            state.destroy(slot)
        else:
            self.failure = described(error)
            state.free_failed(slot, error)
        if state.listeners:
            state.notify("connect_failed", error)

    def open_within(self, slot: Pooled[C], budget: TakeBudget) -> Pooled[C]:
        """As `open`, for a take: PoolTimeout if its time is up."""
        seconds, started = budget.connect(), monotonic()
        try:
            return self.open(slot, seconds)
        except PoolClosed:
            raise
        except Exception as error:
            # Before the time was up it is the driver's own error, which tells more than a timeout.
            if monotonic() - started < seconds:
                raise
            raise self.timed_out(budget, hanging=True) from error

    def timed_out(self, budget: TakeBudget, *, hanging: bool) -> PoolTimeout:
        """The error of a take whose time is up."""
        state = self._state
        state.count("timeouts")
        error = PoolTimeout(
            timeout_message(
                self._name,
                budget,
                state.all(),
                state.max_size,
                self.failure,
                hanging=hanging,
                suspended=state.suspended,
            )
        )
        if state.listeners:
            state.notify("timeout", error)
        return error

    def closed(self) -> PoolClosed:
        """The error of a pool that is closed."""
        return PoolClosed(f"pool {self._name!r} is closed")
