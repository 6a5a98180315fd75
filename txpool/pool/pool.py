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
    """Physical connections, at most `max_size` of them, each in one hand at a time. All methods are thread-safe.

    Idle connections go last in first out, so that a quiet pool shrinks; waiting threads first in first out, and
    a connection is handed straight to the first. All times are seconds. `max_wait` bounds a take as a whole: the
    waiting for a place, the look at what was idle, and the connecting. Beyond `min_size` a connection is closed
    after `idle_timeout`, and any is after `max_lifetime`; 0 switches either off. One that was used within
    `check_bypass` is handed out without asking the server whether it is alive. One that does not answer within
    `check_timeout`, when it is asked or reset, is closed: a late answer must find nobody. What is held longer than
    `leak_threshold` is reported once, with the stack that took it, on the logger `txpool.pool`.

    What is given back is reset where it is not clean, or always.

    A forked child finds the pool empty, and never touches the connections of its parent.
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
        self._bypass = check_bypass
        self._check_timeout = check_timeout
        self._reset_always = reset_always
        self._begin(min_size, max_size)
        _pools.add(self)
        if min_size:
            self._maintenance.wake()

    def _begin(self, min_size: int, max_size: int) -> None:
        """Begin in this process, with nothing."""
        self.exchange = PoolState(self._connector, self.name, min_size, max_size, self._max_lifetime)
        self._idle = self.exchange.idle
        self._waiters = self.exchange.waiters
        self._state = self.exchange.reference
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
        if now - pooled.returned_at >= self._bypass or now >= pooled.expires:
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
        """Give a connection back. One that is not clean is rolled back and reset here, in the giver's thread;
        one that cannot be cleaned is closed, and a waiter gets its place.

        Raises ProgrammingError when it was given back already, or is another pool's.
        """
        if pooled.pool_state is not self._state:
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
            self.exchange.put(pooled)
        else:
            self._idle.append(pooled)
            if self._waiters or self.exchange.attention:
                self.exchange.serve_waiters()

    def discard(self, pooled: Pooled[C]) -> None:
        """Close a connection that is broken or half-ended instead of giving it back; a waiter gets its place."""
        if pooled.pool_state is not self._state:
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
        self.exchange.destroy(pooled)

    def check(self) -> None:
        """Ask every idle connection whether it is alive, and close those that are not."""
        for pooled in self._idle.copy():
            if self.exchange.take_idle(pooled):
                if self._check(pooled, self._check_timeout) is CheckResult.ALIVE:
                    self.exchange.put(pooled)
                else:
                    self.exchange.destroy(pooled)

    def drain(self) -> None:
        """Let no connection that exists now be handed out again (after a failover, or a change of password)."""
        self.exchange.expire()
        for pooled in self.exchange.withdraw_idle(math.inf, monotonic()):
            self.exchange.destroy(pooled)

    def resize(self, min_size: int, max_size: int) -> None:
        """Change the sizes. What is above the new maximum is closed: now if it is idle, else when it comes back."""
        self._check_sizes(min_size, max_size)
        self.exchange.resize(min_size, max_size)
        if min_size:
            self._maintenance.wake()

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Wait until `min_size` connections are open; PoolTimeout says why they are not."""
        ready = self._maintenance.wait_for_minimum(self, timeout)
        if self.exchange.closed:
            raise self._closed()
        if not ready:
            raise PoolTimeout(
                f"pool {self.name!r}: {self.exchange.min_size} connections were not open within {timeout:g} s"
                + (f"; the last attempt to connect failed with {self.failure}" if self.failure else "")
            )

    def close(self) -> None:
        """Close what is idle now, and what is taken when it comes back; whoever waits gets PoolClosed."""
        self.exchange.close()
        self._maintenance.join(JOIN_TIMEOUT)

    def statistics(self) -> PoolStatistics:
        """The numbers of this moment, and the totals."""
        exchange = self.exchange
        with exchange.lock:
            members = exchange.all()
            totals: dict[str, Any] = {field.name: getattr(exchange.counters, field.name) for field in fields(Counters)}
        exchange.run_deferred()
        totals["takes"] += sum(pooled.uses for pooled in members)
        totals["use_seconds"] += sum(pooled.use_seconds for pooled in members)
        return PoolStatistics(
            name=self.name,
            min_size=exchange.min_size,
            max_size=exchange.max_size,
            size=len(members),
            idle=len(self._idle),
            taken=sum(bool(pooled.holder) for pooled in members),
            waiting=len(self._waiters),
            **totals,
        )

    def open(self, place: Pooled[C], timeout: float) -> Pooled[C]:
        """Connect, in a place that is reserved for it; a connect that fails gives the place to the next."""
        self.exchange.refuse_finaliser()
        started = monotonic()
        try:
            if not self.exchange.closed:
                place.open(timeout)
        except BaseException as error:
            if isinstance(error, Exception):
                self.failure = f"{type(error).__name__}: {error}"
                self.exchange.count("connect_failures")
            self.exchange.destroy(place)
            raise
        if self.exchange.closed:
            self.exchange.destroy(place)
            raise self._closed()
        self.failure = None
        place.dirty = self._reset_always
        seconds = monotonic() - started
        self.exchange.count("created")
        self.exchange.count("create_seconds", seconds)
        if instruments.armed:
            _opened(seconds, self.name)
        self._maintenance.wake()
        return place

    def _wait(self, budget: TakeBudget) -> Pooled[C]:
        pooled = self.exchange.wait(budget.left())
        if pooled is not None:
            return pooled
        if self.exchange.closed:
            raise self._closed()
        raise self._timed_out(budget, hanging=False)

    def _timed_out(self, budget: TakeBudget, *, hanging: bool) -> PoolTimeout:
        self.exchange.count("timeouts")
        members, most = self.exchange.all(), self.exchange.max_size
        return PoolTimeout(timeout_message(self.name, budget, members, most, self.failure, hanging=hanging))

    def _refresh(self, pooled: Pooled[C], budget: TakeBudget) -> Pooled[C]:
        """This one, or in place of one that does not answer another idle one, or else a fresh one."""
        while pooled.is_open:
            look = CheckResult.DEAD
            if monotonic() < pooled.expires:
                look = self._check(pooled, budget.check(self._check_timeout))
            if look is CheckResult.ALIVE:
                return pooled
            pooled = self.exchange.replace(pooled)
            if look is CheckResult.SILENT:
                budget.silent += 1
                if budget.left() <= 0:
                    self.exchange.destroy(pooled)
                    raise self._timed_out(budget, hanging=True)
                if budget.has_checks():
                    pooled = self.exchange.idle_instead_of(pooled)
        return self._open_within(pooled, budget)

    def _open_within(self, place: Pooled[C], budget: TakeBudget) -> Pooled[C]:
        granted, started = budget.connect(), monotonic()
        try:
            return self.open(place, granted)
        except PoolClosed:
            raise
        except Exception as error:
            # An error that has come sooner is the driver's own word, and tells more.
            if monotonic() - started < granted:
                raise
            raise self._timed_out(budget, hanging=True) from error

    def _check(self, pooled: Pooled[C], timeout: float) -> CheckResult:
        try:
            self._connector.ping(pooled.raw, timeout)
        except TimeoutError:
            self.exchange.count("check_failures")
            log.warning("pool %r: a connection was closed, it did not answer within %.1f s", self.name, timeout)
            return CheckResult.SILENT
        except Exception as error:
            self.exchange.count("check_failures")
            log.info("pool %r: a connection was found dead: %s: %s", self.name, type(error).__name__, error)
            return CheckResult.DEAD
        except BaseException:
            self.exchange.destroy(pooled)
            raise
        return CheckResult.ALIVE

    def _make_clean(self, pooled: Pooled[C]) -> None:
        if pooled.dropped or self.exchange.deferred_in_finaliser(self._make_clean, pooled):
            return
        if pooled.returned_at < pooled.expires and self._reset(pooled):
            self.exchange.put(pooled)
        else:
            self.exchange.destroy(pooled)

    def _reset(self, pooled: Pooled[C]) -> bool:
        try:
            self._connector.reset(pooled.raw, self._check_timeout)
            reason = "" if self._is_clean(pooled.raw) else "it is not clean after the reset"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        except BaseException:
            self.exchange.destroy(pooled)
            raise
        if reason:
            self.exchange.count("reset_failures")
            log.warning("pool %r: a connection was closed, it could not be reset: %s", self.name, reason)
            return False
        pooled.dirty = self._reset_always
        return True

    def _require_from_this_pool(self, pooled: Pooled[C]) -> None:
        if pooled.pool_state is not None:  # None: it is the parent's, which a forked child leaves alone
            raise ProgrammingError(f"pool {self.name!r}: this connection is not from this pool")

    def _given_back_already(self) -> ProgrammingError:
        return ProgrammingError(f"pool {self.name!r}: this connection was given back already")

    def _closed(self) -> PoolClosed:
        return PoolClosed(f"pool {self.name!r} is closed")

    def _begin_in_child(self) -> None:
        parents = self.exchange
        for pooled in parents.all():
            pooled.pool_state = None
            _inherited.append(pooled)
        _inherited.append(parents)
        self.failure = None
        self._begin(parents.min_size, parents.max_size)
        if parents.closed:
            self.exchange.close()

    def __repr__(self) -> str:
        now = self.statistics()
        state = "closed, " if self.exchange.closed else ""
        return (
            f"<{type(self).__name__} {self.name!r} {state}{now.idle} idle, {now.taken} taken of at most "
            f"{now.max_size}, {now.waiting} waiting>"
        )


_pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()


def all_statistics() -> list[PoolStatistics]:
    """The numbers of every pool of this process that has ever been used."""
    found = [pool.statistics() for pool in list(_pools)]
    return [numbers for numbers in found if numbers.size or numbers.created or numbers.connect_failures]


#: What a forked child must never close, and so never collect.
_inherited: list[object] = []


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
