"""How a connection is taken from a pool, and how it is given back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import current_thread, local
from time import monotonic
from typing import Generic

from txpool import loops
from txpool.errors import ProgrammingError
from txpool.metrics import HISTOGRAMS, instruments
from txpool.metrics.catalogue import USE_SECONDS
from txpool.pool.checker import Checker
from txpool.pool.listeners import Listeners
from txpool.pool.opener import Opener
from txpool.pool.pooled import C, Connector, Holder, Pooled
from txpool.pool.report import stack_of_caller
from txpool.pool.state import PoolState
from txpool.pool.waiting import TakeBudget, Waiter

_held = HISTOGRAMS[USE_SECONDS].observe

#: Of each thread its own Holder, since `current_thread()` is a call of Python.
_here = local()


def _holder() -> Holder:
    call = loops.current()
    return Holder(current_thread(), "" if call is None else call.task_name)


class Taking(Generic[C]):
    """The part of a pool that its users call for each connection. `Pool` adds its settings, and sets the attributes."""

    name: str
    max_wait: float
    leak_threshold: float | None
    listeners: Listeners
    state: PoolState[C]
    opener: Opener[C]
    checker: Checker[C]
    _is_clean: Callable[[C], bool]
    _check_bypass: float
    #: Whether a take has more to do than to hand out the connection.
    _watched: bool
    _idle: deque[Pooled[C]]
    #: What may be taken without waiting: the idle connections, or nothing while the pool is suspended.
    _ready: deque[Pooled[C]]
    _waiters: deque[Waiter[C]]
    _reference: Callable[[], PoolState[C] | None]

    def take(self, timeout: float | None = None) -> Pooled[C]:
        """Take a connection that is alive and clean, waiting for one for `timeout` (default `max_wait`) seconds.

        Raises PoolTimeout, PoolClosed, or the driver's own error when it cannot connect.
        """
        budget = None
        try:
            pooled = self._ready.pop()
        except IndexError:
            budget = TakeBudget(self.max_wait if timeout is None else timeout)
            pooled = self._wait(budget)
        try:
            now = monotonic()
            if pooled.doubted or now - pooled.returned_at >= self._check_bypass or now >= pooled.expires:
                budget = budget or TakeBudget(self.max_wait if timeout is None else timeout)
                pooled = self.checker.refresh(pooled, budget)
                now = monotonic()
            pooled.taken_at = now
            pooled.plain = False
            pooled.uses += 1
            try:
                pooled.holder.append(_here.thread if not loops.used else _holder())
            except AttributeError:
                _here.thread = thread = Holder(current_thread())
                pooled.holder.append(thread)
            if self._watched:
                self._watch(pooled)
        except BaseException:
            self.state.give_up(pooled)
            raise
        return pooled

    def take_separate(self, connector: Connector[C], timeout: float | None = None) -> Pooled[C]:
        """Open a connection by another connector, within `max_size`: it is closed when it is given back.

        Waits, and raises, as `take`.
        """
        budget = TakeBudget(self.max_wait if timeout is None else timeout)
        slot = self.state.reserve_before_idle() or self._wait(budget)
        try:
            if slot.is_open:
                slot = self.state.replace(slot)
            slot.connector = connector
            slot.separate = True
            pooled = self.opener.open_within(slot, budget)
            pooled.taken_at = monotonic()
            pooled.uses += 1
            pooled.holder.append(_holder())
            if self._watched:
                self._watch(pooled)
        except BaseException:
            self.state.give_up(slot)
            raise
        return pooled

    def give_back(self, pooled: Pooled[C]) -> None:
        """Give a connection back. One that is not clean is rolled back and reset here, in the caller's thread;
        one that cannot be reset is closed, and a waiter gets its slot.

        Raises ProgrammingError when it was given back already, or is another pool's.
        """
        if pooled.pool_state is not self._reference:
            self._require_from_this_pool(pooled)
            return
        try:
            try:
                pooled.holder.pop()
            except IndexError:
                raise self._given_back_already() from None
            except BaseException:  # an interrupt comes behind a call
                pooled.on_its_way = True
                raise
            pooled.on_its_way = True
            pooled.returned_at = now = monotonic()
            pooled.use_seconds += now - pooled.taken_at
            if instruments.armed:
                _held(now - pooled.taken_at, self.name)
            if self.listeners:
                self.state.notify_holding(pooled, "given_back", pooled.raw, now - pooled.taken_at)
            if pooled.dirty or now >= pooled.expires or not self._is_clean(pooled.raw):
                self.checker.make_clean(pooled)
            elif self._waiters:
                self.state.put(pooled)
            else:
                pooled.on_its_way = False
                self._idle.append(pooled)
                if self._waiters or self.state.check_surplus:
                    self.state.serve_waiters()
        except BaseException:
            if pooled.on_its_way:
                self.state.destroy(pooled)
            raise

    def discard(self, pooled: Pooled[C], *, lost: bool = False) -> None:
        """Close a connection that is broken or half-ended instead of giving it back; a waiter gets its slot.

        If it was `lost`, the idle ones may be as well: each is checked before it is handed out.
        """
        if pooled.pool_state is not self._reference:
            self._require_from_this_pool(pooled)
            return
        try:
            try:
                pooled.holder.pop()
            except IndexError:
                raise self._given_back_already() from None
            except BaseException:
                pooled.on_its_way = True
                raise
            pooled.on_its_way = True
            seconds = monotonic() - pooled.taken_at
            pooled.use_seconds += seconds
            if instruments.armed:
                _held(seconds, self.name)
            if self.listeners:
                self.state.notify_holding(pooled, "given_back", pooled.raw, seconds)
            if lost:
                self.checker.doubt_idle()
        finally:
            if pooled.on_its_way:
                self.state.destroy(pooled)

    def abandon(self, pooled: Pooled[C]) -> None:
        """Close a connection whose way back an interrupt has ended. Does nothing if it has arrived."""
        if pooled.on_its_way:
            self.state.destroy(pooled)

    def _given_back_already(self) -> ProgrammingError:
        return ProgrammingError(f"pool {self.name!r}: this connection was given back already")

    def _wait(self, budget: TakeBudget) -> Pooled[C]:
        pooled = self.state.wait(budget.left())
        if pooled is not None:
            return pooled
        if self.state.closed:
            raise self.opener.closed()
        raise self.opener.timed_out(budget, hanging=False)

    def _watch(self, pooled: Pooled[C]) -> None:
        """Note where it was taken, and tell the listeners."""
        try:
            if self.leak_threshold is not None:
                pooled.leak_reported = False
                pooled.stack = stack_of_caller()
            if self.listeners:
                self.state.notify("taken", pooled.raw)
        except BaseException:
            self.discard(pooled)
            raise

    def _require_from_this_pool(self, pooled: Pooled[C]) -> None:
        if pooled.pool_state is not None:  # else it is the parent's, which a forked child leaves alone
            raise ProgrammingError(f"pool {self.name!r}: this connection is not from this pool")
