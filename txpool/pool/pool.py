"""The pool: what happens to a connection when it is taken and when it is given back."""

from __future__ import annotations

import logging
import math
import os
import weakref
from dataclasses import fields
from threading import current_thread
from time import monotonic
from typing import Any, Generic

from txpool.errors import ConfigurationError, PoolClosed, PoolTimeout, ProgrammingError
from txpool.metrics import HISTOGRAMS, instruments
from txpool.metrics.catalogue import CREATE_SECONDS, USE_SECONDS
from txpool.pool.budget import CheckResult, TakeBudget
from txpool.pool.maintenance import Maintenance
from txpool.pool.pooled import C, Connector, Pooled
from txpool.pool.report import stack_of_caller, timeout_message
from txpool.pool.state import PoolState
from txpool.pool.statistics import Counters, PoolStatistics

log = logging.getLogger("txpool.pool")
_opened, _held = (HISTOGRAMS[family].observe for family in (CREATE_SECONDS, USE_SECONDS))

#: Seconds that close() grants to a connect in the background.
JOIN_TIMEOUT = 5.0


class Pool(Generic[C]):
    """At most `max_size` physical connections, each held by one user at a time. All methods are thread-safe.

    Idle connections go last in first out, so that a quiet pool shrinks; waiting threads first in first out, and
    a connection is handed straight to the first. All times are seconds. `max_wait` bounds a take as a whole: waiting
    for a slot, checking idle connections, and connecting. Beyond `min_size` a connection is closed after
    `idle_timeout`, and any is after `max_lifetime`; 0 switches either off. A connection that was used within
    `check_bypass` is handed out without asking the server whether it is alive. One that does not answer within
    `check_timeout` when it is checked or reset is closed, since its late answer would be read as that of the next
    statement. One that is held longer than `leak_threshold` is reported once, with the stack that took it, on the
    logger `txpool.pool`. One that is given back is reset where it is not clean, or always with `reset_always`.

    A forked child finds the pool empty, and never uses the connections of its parent.
    """

    def __init__(
        self,
        connector: Connector[C],
        *,
        name: str,
        min_size: int = 0,
        max_size: int = 10,
        max_wait: float = 30.0,
        idle_timeout: float = 600.0,
        max_lifetime: float = 1800.0,
        check_bypass: float = 0.5,
        check_timeout: float = 5.0,
        leak_threshold: float | None = None,
        reset_always: bool = False,
    ) -> None:
        self.name = name
        self.max_wait = max_wait
        self.idle_timeout = idle_timeout or math.inf
        self.leak_threshold = leak_threshold
        #: The last error of connecting, until a connect succeeds.
        self.failure: str | None = None
        self._check_sizes(min_size, max_size)
        self._connector = connector
        self._is_clean = connector.is_clean
        self._max_lifetime = max_lifetime or math.inf
        self._check_bypass = check_bypass
        self._check_timeout = check_timeout
        self._reset_always = reset_always
        self._begin(min_size, max_size)
        _pools.add(self)
        if min_size:
            self._maintenance.wake()

    def _begin(self, min_size: int, max_size: int) -> None:
        """Begin in this process, with no connection."""
        self.state = PoolState(self._connector, self.name, min_size, max_size, self._max_lifetime)
        self._idle = self.state.idle
        self._waiters = self.state.waiters
        self._reference = self.state.reference
        self._maintenance = Maintenance(self)

    def _check_sizes(self, min_size: int, max_size: int) -> None:
        if not 0 <= min_size <= max_size or max_size < 1:
            raise ConfigurationError(
                f"pool {self.name!r}: pool.min-size {min_size} and pool.max-size {max_size} do not fit: "
                "0 <= min-size <= max-size, and max-size at least 1"
            )

    def take(self, timeout: float | None = None) -> Pooled[C]:
        """Take a connection that is alive and clean, waiting for one for `timeout` (default `max_wait`) seconds.

        Raises PoolTimeout, PoolClosed, or the driver's own error when it cannot connect.
        """
        budget = None
        try:
            pooled = self._idle.pop()
        except IndexError:
            budget = TakeBudget(self.max_wait if timeout is None else timeout)
            pooled = self._wait(budget)
        now = monotonic()
        if now - pooled.returned_at >= self._check_bypass or now >= pooled.expires:
            pooled = self._refresh(pooled, budget or TakeBudget(self.max_wait if timeout is None else timeout))
            now = monotonic()
        pooled.taken_at = now
        pooled.uses += 1
        if self.leak_threshold is not None:
            pooled.leak_reported = False
            pooled.stack = stack_of_caller()
        pooled.holder.append(current_thread())
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
            pooled.holder.pop()
        except IndexError:
            raise self._given_back_already() from None
        pooled.returned_at = now = monotonic()
        pooled.use_seconds += now - pooled.taken_at
        if instruments.armed:
            _held(now - pooled.taken_at, self.name)
        if pooled.dirty or now >= pooled.expires or not self._is_clean(pooled.raw):
            self._make_clean(pooled)
        elif self._waiters:
            self.state.put(pooled)
        else:
            self._idle.append(pooled)
            if self._waiters or self.state.check_surplus:
                self.state.serve_waiters()

    def discard(self, pooled: Pooled[C]) -> None:
        """Close a connection that is broken or half-ended instead of giving it back; a waiter gets its slot."""
        if pooled.pool_state is not self._reference:
            self._require_from_this_pool(pooled)
            return
        try:
            pooled.holder.pop()
        except IndexError:
            raise self._given_back_already() from None
        seconds = monotonic() - pooled.taken_at
        pooled.use_seconds += seconds
        if instruments.armed:
            _held(seconds, self.name)
        self.state.destroy(pooled)

    def check(self) -> None:
        """Ask every idle connection whether it is alive, and close those that are not."""
        for pooled in self._idle.copy():
            if self.state.take_idle(pooled):
                if self._check(pooled, self._check_timeout) is CheckResult.ALIVE:
                    self.state.put(pooled)
                else:
                    self.state.destroy(pooled)

    def drain(self) -> None:
        """Close every connection that exists now, before it is used again (after a failover, a change of password)."""
        self.state.expire()
        for pooled in self.state.withdraw_idle(math.inf, monotonic()):
            self.state.destroy(pooled)

    def resize(self, min_size: int, max_size: int) -> None:
        """Change the sizes. Connections above the new maximum are closed: idle ones now, others when they come back."""
        self._check_sizes(min_size, max_size)
        self.state.resize(min_size, max_size)
        if min_size:
            self._maintenance.wake()

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Wait until `min_size` connections are open; PoolTimeout says why they are not."""
        ready = self._maintenance.wait_for_minimum(self, timeout)
        if self.state.closed:
            raise self._closed()
        if not ready:
            raise PoolTimeout(
                f"pool {self.name!r}: {self.state.min_size} connections were not open within {timeout:g} s"
                + (f"; the last attempt to connect failed with {self.failure}" if self.failure else "")
            )

    def close(self) -> None:
        """Close idle connections now, and taken ones when they come back; waiting threads get PoolClosed."""
        self.state.close()
        self._maintenance.join(JOIN_TIMEOUT)

    def statistics(self) -> PoolStatistics:
        """The numbers of this moment, and the totals."""
        state = self.state
        with state.lock:
            members = state.all()
            totals: dict[str, Any] = {field.name: getattr(state.counters, field.name) for field in fields(Counters)}
        state.run_deferred()
        totals["takes"] += sum(pooled.uses for pooled in members)
        totals["use_seconds"] += sum(pooled.use_seconds for pooled in members)
        return PoolStatistics(
            name=self.name,
            min_size=state.min_size,
            max_size=state.max_size,
            size=len(members),
            idle=len(self._idle),
            taken=sum(bool(pooled.holder) for pooled in members),
            waiting=len(self._waiters),
            **totals,
        )

    def open(self, slot: Pooled[C], timeout: float) -> Pooled[C]:
        """Open a connection in a reserved slot. Where that fails, the slot goes to the next waiter."""
        self.state.refuse_finaliser()
        started = monotonic()
        try:
            if not self.state.closed:
                slot.open(timeout)
        except BaseException as error:
            if isinstance(error, Exception):
                self.failure = f"{type(error).__name__}: {error}"
                self.state.count("connect_failures")
            self.state.destroy(slot)
            raise
        if self.state.closed:
            self.state.destroy(slot)
            raise self._closed()
        self.failure = None
        slot.dirty = self._reset_always
        seconds = monotonic() - started
        self.state.count("created")
        self.state.count("create_seconds", seconds)
        if instruments.armed:
            _opened(seconds, self.name)
        self._maintenance.wake()
        return slot

    def _wait(self, budget: TakeBudget) -> Pooled[C]:
        pooled = self.state.wait(budget.left())
        if pooled is not None:
            return pooled
        if self.state.closed:
            raise self._closed()
        raise self._timed_out(budget, hanging=False)

    def _timed_out(self, budget: TakeBudget, *, hanging: bool) -> PoolTimeout:
        self.state.count("timeouts")
        members, most = self.state.all(), self.state.max_size
        return PoolTimeout(timeout_message(self.name, budget, members, most, self.failure, hanging=hanging))

    def _refresh(self, pooled: Pooled[C], budget: TakeBudget) -> Pooled[C]:
        """This connection if it is alive; else close it, and return another idle one or a new one."""
        while pooled.is_open:
            result = CheckResult.DEAD
            if monotonic() < pooled.expires:
                result = self._check(pooled, budget.check(self._check_timeout))
            if result is CheckResult.ALIVE:
                return pooled
            pooled = self.state.replace(pooled)
            if result is CheckResult.SILENT:
                budget.silent += 1
                if budget.left() <= 0:
                    self.state.destroy(pooled)
                    raise self._timed_out(budget, hanging=True)
                if budget.has_checks():
                    pooled = self.state.idle_instead_of(pooled)
        return self._open_within(pooled, budget)

    def _open_within(self, slot: Pooled[C], budget: TakeBudget) -> Pooled[C]:
        seconds, started = budget.connect(), monotonic()
        try:
            return self.open(slot, seconds)
        except PoolClosed:
            raise
        except Exception as error:
            # Before the time was up it is the driver's own error, which tells more than a timeout.
            if monotonic() - started < seconds:
                raise
            raise self._timed_out(budget, hanging=True) from error

    def _check(self, pooled: Pooled[C], timeout: float) -> CheckResult:
        try:
            self._connector.ping(pooled.raw, timeout)
        except TimeoutError:
            self.state.count("check_failures")
            log.warning("pool %r: a connection was closed, it did not answer within %.1f s", self.name, timeout)
            return CheckResult.SILENT
        except Exception as error:
            self.state.count("check_failures")
            log.info("pool %r: a connection was found dead: %s: %s", self.name, type(error).__name__, error)
            return CheckResult.DEAD
        except BaseException:
            self.state.destroy(pooled)
            raise
        return CheckResult.ALIVE

    def _make_clean(self, pooled: Pooled[C]) -> None:
        """Reset a connection that was given back, and hand it on; close it where it has expired or cannot be reset."""
        if pooled.dropped or self.state.deferred_in_finaliser(self._make_clean, pooled):
            return
        if pooled.returned_at < pooled.expires and self._reset(pooled):
            self.state.put(pooled)
        else:
            self.state.destroy(pooled)

    def _reset(self, pooled: Pooled[C]) -> bool:
        try:
            self._connector.reset(pooled.raw, self._check_timeout)
            reason = "" if self._is_clean(pooled.raw) else "it is not clean after the reset"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        except BaseException:
            self.state.destroy(pooled)
            raise
        if reason:
            self.state.count("reset_failures")
            log.warning("pool %r: a connection was closed, it could not be reset: %s", self.name, reason)
            return False
        pooled.dirty = self._reset_always
        return True

    def _require_from_this_pool(self, pooled: Pooled[C]) -> None:
        if pooled.pool_state is not None:  # else it is the parent's, which a forked child leaves alone
            raise ProgrammingError(f"pool {self.name!r}: this connection is not from this pool")

    def _given_back_already(self) -> ProgrammingError:
        return ProgrammingError(f"pool {self.name!r}: this connection was given back already")

    def _closed(self) -> PoolClosed:
        return PoolClosed(f"pool {self.name!r} is closed")

    def begin_in_child(self) -> None:
        """After a fork, in the child: begin with no connection, and leave the parent's alone."""
        parents = self.state
        for pooled in parents.all():
            pooled.pool_state = None
            _inherited.append(pooled)
        _inherited.append(parents)
        self.failure = None
        self._begin(parents.min_size, parents.max_size)
        if parents.closed:
            self.state.close()

    def __repr__(self) -> str:
        now = self.statistics()
        state = "closed, " if self.state.closed else ""
        return (
            f"<{type(self).__name__} {self.name!r} {state}{now.idle} idle, {now.taken} taken of at most "
            f"{now.max_size}, {now.waiting} waiting>"
        )


_pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()


def all_statistics() -> list[PoolStatistics]:
    """The numbers of every pool of this process that has ever been used."""
    found = [pool.statistics() for pool in list(_pools)]
    return [numbers for numbers in found if numbers.size or numbers.created or numbers.connect_failures]


#: Kept for ever by a forked child: were they collected, the parent's connections would be closed.
_inherited: list[object] = []


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
