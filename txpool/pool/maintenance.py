"""The maintenance thread of a pool: it keeps `min_size` connections open, closes expired and idle ones, asks the
others whether they are alive, reports leaks.

It sleeps until something is due or its queue has an entry, holds its pool by a weak reference only, and ends when the
pool is closed or collected. If it cannot be started (the interpreter is ending, or there are too many threads), the
pool works without it: expired connections are then closed when they are taken or given back.
"""

from __future__ import annotations

import contextvars
import logging
import math
import weakref
from contextlib import suppress
from queue import Empty
from threading import TIMEOUT_MAX, Event, current_thread
from time import monotonic
from typing import TYPE_CHECKING, Generic

from txpool.errors import PoolClosed
from txpool.pool.listeners import MaintenanceThread
from txpool.pool.pooled import JITTER, C, Pooled
from txpool.pool.report import held_by

if TYPE_CHECKING:
    from txpool.pool.pool import Pool

log = logging.getLogger("txpool.pool")

#: Seconds between attempts to refill while connecting fails: the first, and what doubling it ends at.
FIRST_BACKOFF, LAST_BACKOFF = 0.1, 30.0
#: Seconds that a connect has at least. No caller waits for it, but one that hangs would keep its slot.
LEAST_CONNECT = 30.0


class Maintenance(Generic[C]):
    """One pool's maintenance. `wake`, `join` and `wait_for_minimum` are for any thread."""

    def __init__(self, pool: Pool[C]) -> None:
        queue = pool.state.maintenance_queue
        self._queue = queue
        self._lock = pool.state.lock
        self._pool = weakref.ref(pool, lambda _: queue.put(None))
        self._name = pool.name
        self._thread: MaintenanceThread | None = None
        self._backoff = 0.0
        self._retry_at = 0.0
        self._has_minimum = Event()

    def wake(self) -> None:
        """Have the thread look for work, since something has changed; start it the first time."""
        try:
            thread = None
            with self._lock:
                if self._thread is not None:
                    self._queue.put(None)
                    return
                # An empty context: the thread must not inherit the transaction in which it happened to start.
                run = contextvars.Context().run
                self._thread = thread = MaintenanceThread(
                    target=run, args=(self._run,), name=f"txpool-pool-{self._name}", daemon=True
                )
            if (pool := self._pool()) is not None:
                pool.state.run_deferred()
            try:
                thread.start()
            except RuntimeError as error:
                log.warning("pool %r: no maintenance, its thread cannot start: %s", self._name, error)
        except BaseException:  # an interrupt: the next call starts another
            if thread is not None and self._thread is thread:
                self._thread = None
            raise

    def join(self, timeout: float) -> None:
        """Wait for the thread of a closed pool to end."""
        if self._thread is not None and self._thread.ident is not None and self._thread is not current_thread():
            self._thread.join(timeout)

    def wait_for_minimum(self, pool: Pool[C], timeout: float) -> bool:
        """Wait until `min_size` connections are open, or the pool is closed; False when time is up."""
        deadline = monotonic() + timeout
        while not pool.state.closed and not pool.state.has_minimum():
            self._has_minimum.clear()
            self.wake()
            if not self._has_minimum.wait(min(max(deadline - monotonic(), 0), TIMEOUT_MAX)):
                return False
        return True

    def _run(self) -> None:
        if self._thread is not current_thread():  # an interrupt came as it was started
            return
        while (pool := self._pool()) is not None and not pool.state.closed:
            pause = self._maintain(pool)
            del pool
            self._sleep(pause)
        self._has_minimum.set()
        self._sleep(0)

    def _sleep(self, pause: float | None) -> None:
        """Sleep for `pause` seconds or until the queue has an entry (None: only that); close what was dropped."""
        with suppress(Empty):
            dropped = self._queue.get(timeout=pause)
            while True:
                if isinstance(dropped, Pooled):
                    self._close_dropped(dropped)
                dropped = self._queue.get_nowait()

    def _close_dropped(self, pooled: Pooled[C]) -> None:
        if (text := held_by(pooled, monotonic())) is not None:
            log.warning(
                "pool %r: a connection was dropped without being closed; its slot is free again. It was held by %s",
                self._name,
                text,
            )
        state = pooled.pool_state() if pooled.pool_state is not None else None
        if state is None:
            pooled.close()
        else:
            if state.listeners and pooled.is_open:
                state.notify("lost", pooled.raw, text or "nobody")
            state.destroy(pooled)
            state.count("lost")

    def _maintain(self, pool: Pool[C]) -> float | None:
        now = monotonic()
        pool.state.free_gone()  # the queue is empty: no finaliser has passed one of them on
        for pooled in pool.state.withdraw_idle(pool.idle_timeout, now):
            pool.state.destroy(pooled)
        self._report_leaks(pool, now)
        self._refill(pool)
        if pool.state.has_minimum():
            self._has_minimum.set()
        if self._check_one(pool):
            return 0.0  # the next one, unless something else is due
        due = self._next_due(pool, now)
        return None if due == math.inf else min(max(due - monotonic(), 0), TIMEOUT_MAX)

    def _report_leaks(self, pool: Pool[C], now: float) -> None:
        if pool.leak_threshold is None:
            return
        for pooled in pool.state.all():
            if pooled.leak_reported or now - pooled.taken_at < pool.leak_threshold:
                continue
            if (text := held_by(pooled, now)) is not None:
                pooled.leak_reported = True
                pool.state.count("leaks")
                log.warning("pool %r: a connection has not come back yet; held by %s", self._name, text)
                if pool.state.listeners:
                    pool.state.notify("leak", pooled.raw, now - pooled.taken_at, text)

    def _check_one(self, pool: Pool[C]) -> bool:
        """Check one connection that has been idle for `keepalive` since its use or last check; False without any."""
        if pool.keepalive == math.inf:
            return False
        now = monotonic()
        for pooled in pool.state.idle.copy():
            if pooled.check_due(pool.keepalive) <= now and pool.state.take_idle(pooled):
                if pooled.check_due(pool.keepalive) > now:  # it was used meanwhile
                    pool.state.put(pooled)
                    continue
                pool.checker.check_idle(pooled)
                return True
        return False

    def _refill(self, pool: Pool[C]) -> None:
        """Open connections one by one until there are `min_size`; each goes to a waiter, if there is one."""
        # Without `failure`, a connect of another thread has succeeded since: no reason to back off any longer.
        while (pool.opener.failure is None or monotonic() >= self._retry_at) and not pool.state.closed:
            slot = pool.state.reserve_below_min()
            if slot is None:
                return
            try:
                pool.state.put(pool.opener.open(slot, max(pool.max_wait, LEAST_CONNECT)))
            except PoolClosed:
                return
            except Exception as error:
                self._backoff = min(max(2 * self._backoff, FIRST_BACKOFF), LAST_BACKOFF)
                self._retry_at = monotonic() + self._backoff
                log.warning(
                    "pool %r: cannot connect (%s: %s), next attempt in %g s",
                    self._name,
                    type(error).__name__,
                    str(error),
                    self._backoff,
                )
            else:
                self._backoff = 0.0

    def _next_due(self, pool: Pool[C], now: float) -> float:
        """When something will be due that was not at `now`; a change before that puts an entry into the queue."""
        times = [self._retry_at]
        for pooled in pool.state.all():
            held = bool(pooled.holder)
            if held:  # it may come back at once
                times += [now + pool.idle_timeout, now + pool.keepalive * (1 - JITTER)]
            else:
                times += [pooled.expires, pooled.returned_at + pool.idle_timeout, pooled.check_due(pool.keepalive)]
            if pool.leak_threshold is not None:
                times.append((pooled.taken_at if held and not pooled.leak_reported else now) + pool.leak_threshold)
        return min((time for time in times if time > now), default=math.inf)
