"""The thread behind a pool: it keeps the stock, retires the old and the idle, and reports leaks.

It sleeps until the next thing is due or its tray rings, holds its pool by a weak reference only, and ends when
the pool is closed or collected. A process in which it cannot start (the interpreter is ending, no thread is to
be had) has a pool all the same: what has expired is then noticed when it is taken or given back.
"""

from __future__ import annotations

import contextvars
import logging
import math
import weakref
from contextlib import suppress
from queue import Empty
from threading import TIMEOUT_MAX, Event, Thread, current_thread
from time import monotonic
from typing import TYPE_CHECKING, Generic

from txpool.errors import PoolClosed
from txpool.pool.pooled import C, Pooled
from txpool.pool.report import held_by

if TYPE_CHECKING:
    from txpool.pool.pool import Pool

log = logging.getLogger("txpool.pool")

#: Seconds between attempts to refill while connecting fails: the first, and what doubling it ends at.
FIRST_BACKOFF, LAST_BACKOFF = 0.1, 30.0
#: Seconds that a connect has at least: nobody waits for it, but one that hangs would keep its place.
LEAST_CONNECT = 30.0


class Maintenance(Generic[C]):
    """What one pool's thread does, and when."""

    def __init__(self, pool: Pool[C]) -> None:
        tray = pool.exchange.dropped
        self._dropped = tray
        self._lock = pool.exchange.lock
        self._pool = weakref.ref(pool, lambda _: tray.put(None))
        self._name = pool.name
        self._thread: Thread | None = None
        self._backoff = 0.0
        self._retry_at = 0.0
        self._has_minimum = Event()

    def wake(self) -> None:
        """Have the thread look at what has changed; start it the first time."""
        with self._lock:
            if self._thread is not None:
                self._dropped.put(None)
                return
            # An empty context: the thread must not inherit the transaction in which it happened to start.
            run = contextvars.Context().run
            self._thread = Thread(target=run, args=(self._run,), name=f"txpool-pool-{self._name}", daemon=True)
        if (pool := self._pool()) is not None:
            pool.exchange.run_deferred()
        try:
            self._thread.start()
        except RuntimeError as error:
            log.warning("pool %r: no maintenance, its thread cannot start: %s", self._name, error)

    def join(self, timeout: float) -> None:
        """Wait for the thread of a closed pool to end."""
        if self._thread is not None and self._thread.ident is not None and self._thread is not current_thread():
            self._thread.join(timeout)

    def wait_for_minimum(self, pool: Pool[C], timeout: float) -> bool:
        """Wait until `min_size` connections are open, or the pool is closed; False when time is up."""
        deadline = monotonic() + timeout
        while not pool.exchange.closed and not pool.exchange.has_minimum():
            self._has_minimum.clear()
            self.wake()
            if not self._has_minimum.wait(min(max(deadline - monotonic(), 0), TIMEOUT_MAX)):
                return False
        return True

    def _run(self) -> None:
        while (pool := self._pool()) is not None and not pool.exchange.closed:
            pause = self._maintain(pool)
            del pool
            self._sleep(pause)
        self._has_minimum.set()
        self._sleep(0)

    def _sleep(self, pause: float | None) -> None:
        """Sleep until something is due (None: until the tray rings), and bury what was dropped meanwhile."""
        with suppress(Empty):
            dropped = self._dropped.get(timeout=pause)
            while True:
                if dropped is not None:
                    self._close_dropped(dropped)
                dropped = self._dropped.get_nowait()

    def _close_dropped(self, pooled: Pooled[C]) -> None:
        if (text := held_by(pooled, monotonic())) is not None:
            log.warning(
                "pool %r: a connection was dropped without being closed; its place is free again. It was held by %s",
                self._name,
                text,
            )
        exchange = pooled.pool_state() if pooled.pool_state is not None else None
        if exchange is None:
            pooled.close()
        else:
            exchange.destroy(pooled)
            exchange.count("lost")

    def _maintain(self, pool: Pool[C]) -> float | None:
        now = monotonic()
        for pooled in pool.exchange.withdraw_idle(pool.idle_timeout, now):
            pool.exchange.destroy(pooled)
        self._report_leaks(pool, now)
        self._refill(pool)
        if pool.exchange.has_minimum():
            self._has_minimum.set()
        due = self._next_due(pool, now)
        return None if due == math.inf else min(max(due - monotonic(), 0), TIMEOUT_MAX)

    def _report_leaks(self, pool: Pool[C], now: float) -> None:
        if pool.leak_threshold is None:
            return
        for pooled in pool.exchange.all():
            if pooled.leak_reported or now - pooled.taken_at < pool.leak_threshold:
                continue
            if (text := held_by(pooled, now)) is not None:
                pooled.leak_reported = True
                pool.exchange.count("leaks")
                log.warning("pool %r: a connection has not come back yet; held by %s", self._name, text)

    def _refill(self, pool: Pool[C]) -> None:
        """Open what is missing to `min_size`, one by one; each goes to a waiter if there is one."""
        # Where a user's connect has succeeded since, there is no reason to back off any longer.
        while (pool.failure is None or monotonic() >= self._retry_at) and not pool.exchange.closed:
            slot = pool.exchange.reserve_below_min()
            if slot is None:
                return
            try:
                pool.exchange.put(pool.open(slot, max(pool.max_wait, LEAST_CONNECT)))
            except PoolClosed:
                return
            except Exception as error:
                self._backoff = min(max(2 * self._backoff, FIRST_BACKOFF), LAST_BACKOFF)
                self._retry_at = monotonic() + self._backoff
                log.warning(
                    "pool %r: cannot connect (%s: %s), next attempt in %g s",
                    self._name,
                    type(error).__name__,
                    error,
                    self._backoff,
                )
            else:
                self._backoff = 0.0

    def _next_due(self, pool: Pool[C], now: float) -> float:
        """When something will be due that was not at `now`; what changes before that rings."""
        times = [self._retry_at]
        for pooled in pool.exchange.all():
            held = bool(pooled.holder)
            times += [now + pool.idle_timeout] if held else [pooled.expires, pooled.returned_at + pool.idle_timeout]
            if pool.leak_threshold is not None:
                times.append((pooled.taken_at if held and not pooled.leak_reported else now) + pool.leak_threshold)
        return min((time for time in times if time > now), default=math.inf)
