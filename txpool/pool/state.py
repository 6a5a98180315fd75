"""Where connections and those who want one meet: the idle, the waiting, and the cap.

Taking an idle connection, and giving one back while nobody waits, is a pop and an append of a deque: atomic
under the GIL, without a lock. What keeps a wake-up from being lost is the order on the two sides:

* who wants one queues first, and then tries again;
* who gives one back appends first, and then looks for waiters.

So either the giver sees the waiter, or the waiter sees the connection. All else happens under `lock`, which is
never held over I/O. A waiter gets a connection, or a free place in which it opens one itself: a connect that
fails passes its place on to the next waiter, who then learns the reason too.

A finaliser may run anywhere: inside the lock, too, in the very thread that holds it. So that of a `Pooled` takes no
lock, and `tray` brings it to maintenance. What users' finalisers do is to give back and to discard: whoever strikes
inside the lock puts that off, and the thread does it as soon as it has let go.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Lock, RLock
from time import monotonic
from typing import Generic

from txpool.errors import InterfaceError
from txpool.metrics import HISTOGRAMS, instruments
from txpool.metrics.catalogue import WAIT_SECONDS
from txpool.pool.pooled import C, Connector, Pooled
from txpool.pool.statistics import Counters

_waited = HISTOGRAMS[WAIT_SECONDS].observe


class Waiter(Generic[C]):
    """Somebody who waits. A raw lock is the cheapest one-shot event."""

    __slots__ = ("pooled", "woken")

    def __init__(self) -> None:
        self.pooled: Pooled[C] | None = None
        self.woken = Lock()
        self.woken.acquire()

    def wake(self, pooled: Pooled[C] | None) -> None:
        self.pooled = pooled
        self.woken.release()


class PoolState(Generic[C]):
    """The state of a pool in one process. All methods are safe from any thread; `puts_off` says how from finalisers."""

    def __init__(self, connector: Connector[C], name: str, min_size: int, max_size: int, max_lifetime: float) -> None:
        self._connector = connector
        self._name = name
        self._max_lifetime = max_lifetime
        self.min_size = min_size
        self.max_size = max_size
        self.closed = False
        #: True while giving back is more than an append: closed, or over the cap after a shrink.
        self.attention = False
        #: Never taken twice: it is a reentrant one because that knows whose it is.
        self.lock = RLock()
        #: What finalisers have put off that struck inside the lock.
        self._deferred: deque[Callable[[], None]] = deque()
        self.idle: deque[Pooled[C]] = deque()
        self.waiters: deque[Waiter[C]] = deque()
        #: What the cap counts, by id. The references are weak so that a dropped one can be noticed.
        self.members: dict[int, weakref.ref[Pooled[C]]] = {}
        self.counters = Counters()
        #: What maintenance wakes for: a dropped connection, or None to look around.
        self.dropped: SimpleQueue[Pooled[C] | None] = SimpleQueue()
        #: The same object in every Pooled from here, so that a stranger is known by identity.
        self.reference = weakref.ref(self)

    # -- finalisers ---------------------------------------------------------------------------------------------

    def deferred_in_finaliser(self, step: Callable[..., None], *args: Pooled[C]) -> bool:
        """In a finaliser that struck inside the lock, leave a step for later; False elsewhere, and it is to be done."""
        if not self._within():
            return False
        self._deferred.append(partial(step, *args))
        return True

    def run_deferred(self) -> None:
        """After each letting go of the lock: do what finalisers have put off that struck inside it."""
        while self._deferred:
            try:
                step = self._deferred.popleft()
            except IndexError:  # another thread was faster
                return
            step()

    def refuse_finaliser(self) -> None:
        """InterfaceError in one that struck inside the lock, and would wait there."""
        if self._within():
            raise InterfaceError(
                f"pool {self._name!r}: a finaliser may give a connection back, but it cannot take one while its thread "
                "is busy in the pool"
            )

    def _within(self) -> bool:
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    # -- the exchange -------------------------------------------------------------------------------------------

    def count(self, counter: str, amount: float = 1) -> None:
        with self.lock:
            setattr(self.counters, counter, getattr(self.counters, counter) + amount)
        self.run_deferred()

    def all(self) -> list[Pooled[C]]:
        """All that exist; list() of a dict's values is one step."""
        return [pooled for ref in list(self.members.values()) if (pooled := ref()) is not None]

    def wait(self, timeout: float) -> Pooled[C] | None:
        """Get a connection, or a place to open one in, in the order of asking; None: closed, or time is up."""
        self.refuse_finaliser()
        waiter: Waiter[C] = Waiter()
        try:
            with self.lock:
                if self.closed:
                    return None
                self.waiters.append(waiter)
            self.serve_waiters()
            if waiter.pooled is None:
                started = monotonic()
                waiter.woken.acquire(timeout=min(max(timeout, 0), TIMEOUT_MAX))
                seconds = monotonic() - started
                with self.lock:
                    self.counters.waits += 1
                    self.counters.wait_seconds += seconds
                self.run_deferred()
                if instruments.armed:
                    _waited(seconds, self._name)
            if waiter.pooled is None:
                self._withdraw(waiter)
        except BaseException:
            self._withdraw(waiter)
            if waiter.pooled is not None:
                self.put(waiter.pooled)
            raise
        return waiter.pooled

    def _withdraw(self, waiter: Waiter[C]) -> None:
        """Leave the queue; after that nobody hands anything over, and what was handed over is in `pooled`."""
        with self.lock:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
        self.run_deferred()

    def put(self, pooled: Pooled[C]) -> None:
        """Hand it straight to the first waiter, so that nobody can overtake; lay it down if there is none."""
        if not pooled.is_open:
            self.destroy(pooled)
            return
        if self.deferred_in_finaliser(self.put, pooled):
            return
        with self.lock:
            handed_over = bool(self.waiters) and not self.attention
            if handed_over:
                self.waiters.popleft().wake(pooled)
            else:
                self.idle.append(pooled)
        self.run_deferred()
        if not handed_over:
            self.serve_waiters()

    def serve_waiters(self) -> None:
        """Close what is too many, then serve the waiters as far as connections and free places go."""
        if self.deferred_in_finaliser(self.serve_waiters):
            return
        with self.lock:
            surplus = self._surplus()
            while self.waiters and (pooled := self._next()) is not None:
                self.waiters.popleft().wake(pooled)
            while self.closed and self.waiters:
                self.waiters.popleft().wake(None)
        self.run_deferred()
        for pooled in surplus:
            self.destroy(pooled)

    def _next(self) -> Pooled[C] | None:
        try:
            return self.idle.pop()
        except IndexError:
            return self._reserve(self.max_size)

    def _reserve(self, limit: int) -> Pooled[C] | None:
        if self.closed or len(self.members) >= limit:
            return None
        pooled = Pooled(self._connector, self.reference, self._max_lifetime)
        self.members[id(pooled)] = weakref.ref(pooled)
        return pooled

    def _surplus(self) -> list[Pooled[C]]:
        surplus: list[Pooled[C]] = []
        while self.closed or len(self.members) > self.max_size:
            try:
                pooled = self.idle.popleft()
            except IndexError:
                break
            surplus.append(pooled)
            self._forget(pooled)
        self.attention = self.closed or len(self.members) > self.max_size
        return surplus

    def _forget(self, pooled: Pooled[C]) -> None:
        if self.members.pop(id(pooled), None) is not None:
            self.counters.takes += pooled.uses
            self.counters.use_seconds += pooled.use_seconds

    def reserve_below_min(self) -> Pooled[C] | None:
        """A place to open a connection in for the stock; None when the stock is complete."""
        with self.lock:
            place = self._reserve(self.min_size)
        self.run_deferred()
        return place

    def replace(self, pooled: Pooled[C]) -> Pooled[C]:
        """Close it and keep its place, which nobody can snatch away meanwhile."""
        pooled.close()
        fresh = Pooled(self._connector, self.reference, self._max_lifetime)
        with self.lock:
            self._forget(pooled)
            self.counters.destroyed += 1
            self.members[id(fresh)] = weakref.ref(fresh)
        self.run_deferred()
        return fresh

    def idle_instead_of(self, place: Pooled[C]) -> Pooled[C]:
        """An idle connection, and the next may have the place that is empty; the place itself where none is idle."""
        try:
            pooled = self.idle.pop()
        except IndexError:
            return place
        self.destroy(place)
        return pooled

    def destroy(self, pooled: Pooled[C]) -> None:
        """Close it, and only then free its place: there are never more than the cap."""
        if self.deferred_in_finaliser(self.destroy, pooled):
            return
        opened = pooled.is_open
        try:
            pooled.close()
        finally:
            with self.lock:
                self._forget(pooled)
                self.counters.destroyed += opened
            if len(self.members) < self.min_size:
                self.dropped.put(None)
            self.serve_waiters()

    def withdraw_idle(self, idle_timeout: float, now: float) -> list[Pooled[C]]:
        """Take out, to be destroyed: what has expired, and beyond `min_size` what was idle for too long."""
        chosen: list[Pooled[C]] = []
        with self.lock:
            spare = len(self.members) - self.min_size
            for pooled in self.idle.copy():
                too_long = pooled.returned_at + idle_timeout <= now and spare > len(chosen)
                if (too_long or pooled.expires <= now) and self.take_idle(pooled):
                    chosen.append(pooled)
        self.run_deferred()
        return chosen

    def take_idle(self, pooled: Pooled[C]) -> bool:
        """Take this one out of the idle; False when somebody was faster."""
        try:
            self.idle.remove(pooled)
        except ValueError:
            return False
        return True

    def has_minimum(self) -> bool:
        return sum(pooled.is_open for pooled in self.all()) >= self.min_size

    def expire(self) -> None:
        """Let nothing that exists be handed out again."""
        for pooled in self.all():
            pooled.expires = 0.0

    def resize(self, min_size: int, max_size: int) -> None:
        with self.lock:
            self.min_size = min_size
            self.max_size = max_size
        self.serve_waiters()

    def close(self) -> None:
        """Close what is idle and send the waiters away; what is taken is closed when it comes back."""
        with self.lock:
            self.closed = self.attention = True
        self.expire()
        self.serve_waiters()
        self.dropped.put(None)
