"""The state of a pool: its idle connections, its waiting threads, and the count of its slots.

Taking an idle connection, and giving one back while no thread waits, is a pop and an append of a deque: atomic
under the GIL, without a lock. No wake-up is lost because of the order on the two sides:

* a thread that takes queues first as a waiter, and then tries again;
* a thread that gives back appends first, and then looks for waiters.

So either the one that gives back sees the waiter, or the waiter sees the connection. Everything else happens under
`lock`, which is never held during I/O. A waiter gets a connection, or a free slot in which it opens one itself. If
that fails, the slot goes to the next waiter, if another connection is open. Else the server is away, and there is no
rush on it: no further waiter tries while other connects are under way, and once the last has failed, all hear why.

Finalisers: see `txpool.pool.finalisers`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import TIMEOUT_MAX
from time import monotonic
from typing import Any, Generic

from txpool.metrics import HISTOGRAMS, instruments
from txpool.metrics.catalogue import WAIT_SECONDS
from txpool.pool.finalisers import DefersSteps
from txpool.pool.listeners import Listeners
from txpool.pool.numbers.statistics import Counters
from txpool.pool.pooled import C, Connector, Member, Pooled
from txpool.pool.waiting import Waiter

_waited = HISTOGRAMS[WAIT_SECONDS].observe

#: Called before a thread waits for a connection: they give back what nobody uses any more.
before_waiting: list[Callable[[], object]] = []


class PoolState(DefersSteps, Generic[C]):
    """The state of a pool in one process. All methods are thread-safe; in finalisers `put`, `serve_waiters` and
    `destroy` are, too.
    """

    def __init__(
        self,
        connector: Connector[C],
        name: str,
        min_size: int,
        max_size: int,
        *,
        max_lifetime: float,
        listeners: Listeners,
    ) -> None:
        self._connector = connector
        self._name = name
        self.listeners = listeners
        self._max_lifetime = max_lifetime
        self.min_size = min_size
        self.max_size = max_size
        self.closed = False
        #: True while nobody is given a connection, idle or new.
        self.suspended = False
        #: True while `give_back` must look for surplus connections: closed, or above `max_size` after a resize.
        self.check_surplus = False
        super().__init__()
        self.idle: deque[Pooled[C]] = deque()
        self.waiters: deque[Waiter[C]] = deque()
        #: The slots in use, by id: what `max_size` counts. Weak references, so that dropped ones can be noticed.
        self.members: dict[int, Member] = {}
        self.counters = Counters()
        #: What wakes the maintenance thread: a dropped connection; the slot of one that is gone, or None, to look for
        #: work.
        self.maintenance_queue: SimpleQueue[Pooled[C] | Member | None] = SimpleQueue()
        #: The `pool_state` of every Pooled of this pool: by its identity another pool's is recognised.
        self.reference = weakref.ref(self)

    # -- listeners ----------------------------------------------------------------------------------------------

    def notify(self, event: str, *args: Any) -> None:
        """Tell the listeners of an event: now, or in a finaliser whose thread holds the lock once that is released."""
        if not self.deferred_in_finaliser(self.listeners.notify_late, event, self._name, *args):
            self.listeners.notify(event, self._name, *args)

    def notify_holding(self, pooled: Pooled[C], event: str, *args: Any) -> None:
        """As `notify`; if that is interrupted, the connection is closed."""
        try:
            self.notify(event, *args)
        except BaseException:
            self.destroy(pooled)
            raise

    # -- taking and giving back ---------------------------------------------------------------------------------

    def count(self, counter: str, amount: float = 1) -> None:
        """Add to one of `Counters`, by its name."""
        with self.lock:
            setattr(self.counters, counter, getattr(self.counters, counter) + amount)
        self.run_deferred()

    def all(self) -> list[Pooled[C]]:
        """All connections and slots; no lock is needed, since list() of a dict's values is atomic."""
        return [pooled for ref in list(self.members.values()) if (pooled := ref()) is not None]

    def wait(self, timeout: float) -> Pooled[C] | None:
        """Get a connection, or a slot to open one in, first come first served; None if closed, or time is up.

        Raises the driver's error if the connects of others have failed, and nothing is open.
        """
        self.refuse_finaliser()
        waiter: Waiter[C] = Waiter()
        try:
            with self.lock:
                if self.closed:
                    return None
                self.waiters.append(waiter)
            self.serve_waiters()
            if waiter.pooled is None:
                for give_back in before_waiting:
                    give_back()
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
                self._leave_queue(waiter)
            if waiter.failure is not None:
                raise waiter.take_failure()
        except BaseException:
            self._leave_queue(waiter)
            if waiter.pooled is not None:
                self.put(waiter.pooled)
            raise
        return waiter.pooled

    def _leave_queue(self, waiter: Waiter[C]) -> None:
        """Leave the queue. What was handed over before is in `waiter.pooled`; nothing is after it."""
        with self.lock:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
        self.run_deferred()

    def put(self, pooled: Pooled[C]) -> None:
        """Hand it straight to the first waiter, so that no other thread can overtake; without one, it is idle."""
        if not pooled.is_open:
            self.destroy(pooled)
            return
        if self.deferred_in_finaliser(self.put, pooled):
            return
        with self.lock:
            handed_over = bool(self.waiters) and not (self.check_surplus or self.suspended)
            if handed_over:
                self._hand_over(pooled)
            else:
                pooled.on_its_way = False
                self.idle.append(pooled)
        self.run_deferred()
        if not handed_over:
            self.serve_waiters()

    def _hand_over(self, pooled: Pooled[C] | None) -> None:
        """Give it to the first waiter, which is in the queue. Wherever an interrupt comes, one of both has happened."""
        waiter = self.waiters[0]
        if pooled is not None:
            pooled.on_its_way = False
        waiter.pooled = pooled
        try:
            waiter.woken.release()
        finally:
            self.waiters.popleft()

    def serve_waiters(self) -> None:
        """Close surplus connections, then serve waiters for as long as there are idle connections or free slots."""
        if self.deferred_in_finaliser(self.serve_waiters):
            return
        with self.lock:
            surplus = self._take_surplus()
            if not self.suspended:
                while True:  # not `while` with a condition: see tests/unit/test_interrupts.py
                    if not self.waiters or (pooled := self._take_idle_or_reserve()) is None:
                        break
                    self._hand_over(pooled)
            while True:
                if not self.closed or not self.waiters:
                    break
                self._hand_over(None)
        self.run_deferred()
        for pooled in surplus:
            self.destroy(pooled)

    def _take_idle_or_reserve(self) -> Pooled[C] | None:
        try:
            return self.idle.pop()
        except IndexError:
            return self._reserve(self.max_size)

    def _reserve(self, limit: int) -> Pooled[C] | None:
        if self.closed or len(self.members) >= limit:
            return None
        pooled = self._new_slot()
        self.members[id(pooled)] = pooled.member
        return pooled

    def _take_surplus(self) -> list[Pooled[C]]:
        surplus: list[Pooled[C]] = []
        while self.closed or len(self.members) > self.max_size:
            try:
                pooled = self.idle.popleft()
            except IndexError:
                break
            surplus.append(pooled)
            self._remove_member(pooled)
        self.check_surplus = self.closed or len(self.members) > self.max_size
        return surplus

    def _new_slot(self) -> Pooled[C]:
        # What tells that it is gone is no code of Python's: there is no place in it where an interrupt could come.
        return Pooled(self._connector, self.reference, self._max_lifetime, self.maintenance_queue.put)

    def free_gone(self) -> None:
        """Close the connections that are gone though an interrupt came in their finalisers, and free their slots."""
        for key, member in list(self.members.items()):
            if member() is not None:
                continue
            member.close()
            with self.lock:
                if self.members.get(key) is member:
                    del self.members[key]
            self.run_deferred()
            self.serve_waiters()

    def _remove_member(self, pooled: Pooled[C]) -> None:
        if self.members.pop(id(pooled), None) is not None:
            del pooled.member  # its end is no news
            self.counters.takes += pooled.uses
            self.counters.use_seconds += pooled.use_seconds

    def reserve_below_min(self) -> Pooled[C] | None:
        """A slot to open a connection in, while there are fewer than `min_size`; else None."""
        with self.lock:
            slot = self._reserve(self.min_size)
        self.run_deferred()
        return slot

    def reserve_before_idle(self) -> Pooled[C] | None:
        """A slot for a new connection, also if others are idle; None if there is none, or a thread waits."""
        with self.lock:
            slot = None if self.suspended or self.waiters else self._reserve(self.max_size)
        self.run_deferred()
        return slot

    def replace(self, pooled: Pooled[C]) -> Pooled[C]:
        """Close it, and return a new slot in place of its own, which no other thread can take meanwhile."""
        pooled.close()
        slot = self._new_slot()
        with self.lock:
            self._remove_member(pooled)
            self.counters.destroyed += 1
            self.members[id(slot)] = slot.member
        self.run_deferred()
        if self.listeners:
            self.notify_holding(slot, "connection_closed", pooled.raw)
        return slot

    def idle_instead_of(self, slot: Pooled[C]) -> Pooled[C]:
        """An idle connection, in place of the empty slot, which is freed; the slot itself if none is idle."""
        try:
            pooled = self.idle.pop()
        except IndexError:
            return slot
        self.destroy(slot)
        return pooled

    def destroy(self, pooled: Pooled[C]) -> None:
        """Close it, and only then free its slot, so that there are never more than `max_size`."""
        if self.deferred_in_finaliser(self.destroy, pooled):
            return
        opened = pooled.is_open
        try:
            pooled.close()
        except BaseException:  # an interrupt: another thread closes it
            self.maintenance_queue.put(pooled)
            raise
        try:
            with self.lock:
                self._remove_member(pooled)
                self.counters.destroyed += opened
        finally:
            pooled.on_its_way = False
            if len(self.members) < self.min_size:
                self.maintenance_queue.put(None)
            self.serve_waiters()
        if opened and self.listeners:
            self.notify("connection_closed", pooled.raw)

    def give_up(self, pooled: Pooled[C]) -> None:
        """As `destroy`, behind an interrupt or an error; does nothing if its slot is free already."""
        if id(pooled) in self.members:
            self.destroy(pooled)

    def free_failed(self, slot: Pooled[C], error: Exception) -> None:
        """Free the slot of a connect that has failed; if nothing is open, see the module's docstring."""
        with self.lock:
            self._remove_member(slot)
            others = self.all()
            away = not (self.suspended or self.closed or _any_is_open(others))
            while True:
                if not away or others or not self.waiters:
                    break
                self.waiters[0].fail(error)
                self.waiters.popleft()
        self.run_deferred()
        if len(self.members) < self.min_size:
            self.maintenance_queue.put(None)
        if not away:
            self.serve_waiters()

    def withdraw_idle(self, idle_timeout: float, now: float) -> list[Pooled[C]]:
        """Take idle connections out, to be destroyed: expired ones, and beyond `min_size` those idle for too long."""
        withdrawn: list[Pooled[C]] = []
        with self.lock:
            spare = len(self.members) - self.min_size
            for pooled in self.idle.copy():
                too_long = pooled.returned_at + idle_timeout <= now and spare > len(withdrawn)
                due = too_long or pooled.expires <= now
                withdrawn += [pooled] if due and self.take_idle(pooled) else []
        self.run_deferred()
        return withdrawn

    def withdraw_all_idle(self) -> list[Pooled[C]]:
        """Take all idle connections out, to be destroyed."""
        return [pooled for pooled in self.idle.copy() if self.take_idle(pooled)]

    def take_idle(self, pooled: Pooled[C]) -> bool:
        """Take this one out of the idle connections; False if another thread has taken it."""
        try:
            self.idle.remove(pooled)
        except ValueError:
            return False
        return True

    def put_back(self, pooled: Pooled[C]) -> None:
        """Put an idle connection back that was taken out to be checked, among the others by the time of its use."""
        with self.lock:
            self.idle.insert(sum(each.returned_at < pooled.returned_at for each in self.idle.copy()), pooled)
        self.run_deferred()
        self.serve_waiters()

    def has_minimum(self) -> bool:
        return sum(pooled.is_open for pooled in self.all()) >= self.min_size

    def expire(self) -> None:
        """Let no connection that exists now be handed out again."""
        for pooled in self.all():
            pooled.expires = 0.0

    def resize(self, min_size: int, max_size: int) -> None:
        with self.lock:
            self.min_size = min_size
            self.max_size = max_size
        self.serve_waiters()

    def close(self) -> None:
        """Close idle connections, and wake all waiters with none; taken ones are closed when they come back."""
        with self.lock:
            self.closed = self.check_surplus = True
        self.expire()
        self.serve_waiters()
        self.maintenance_queue.put(None)


def _any_is_open(connections: Iterable[Pooled[Any]]) -> bool:
    # Not in the block of a lock: see tests/unit/test_interrupts.py.
    return any(each.is_open for each in connections)
