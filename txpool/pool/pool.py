"""The pool: its settings, its sizes and its numbers, and what is done with all of its connections."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from txpool.errors import ConfigurationError, PoolTimeout
from txpool.pool.checker import Checker
from txpool.pool.listeners import Listeners, PoolListener
from txpool.pool.maintenance import Maintenance
from txpool.pool.numbers.registry import inherited, pools
from txpool.pool.numbers.statistics import Counters, PoolStatistics
from txpool.pool.opener import Opener
from txpool.pool.pooled import C, Connector, Pooled
from txpool.pool.state import PoolState
from txpool.pool.taking import Taking

#: Seconds that close() grants to a connect in the background.
JOIN_TIMEOUT = 5.0


class Pool(Taking[C]):
    """At most `max_size` physical connections, each held by one user at a time. All methods are thread-safe.

    Idle connections go last in first out, so that a quiet pool shrinks; waiting threads first in first out, and
    a connection is handed straight to the first. All times are seconds. `max_wait` bounds a take as a whole: waiting
    for a slot, checking idle connections, and connecting. Beyond `min_size` a connection is closed after
    `idle_timeout`, and any is after `max_lifetime`; 0 switches either off. A connection that was used within
    `check_bypass` is handed out without asking the server whether it is alive, unless another has come back lost
    since: what has ended that session may have ended this one. One that has been idle for `keepalive`
    is asked by the pool itself, again and again. One that does not answer within
    `check_timeout` when it is checked or reset is closed, since its late answer would be read as that of the next
    statement. One that is held longer than `leak_threshold` is reported once, with the stack that took it, on the
    logger `txpool.pool`. One that is given back is reset if it is not clean, or always with `reset_always`; if
    the pool is not `enabled`, it is closed.

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
        keepalive: float | None = None,
        check_bypass: float = 0.5,
        check_timeout: float = 5.0,
        leak_threshold: float | None = None,
        reset_always: bool = False,
        enabled: bool = True,
        listeners: Iterable[PoolListener] = (),
        when_opened: Iterable[Callable[[], object]] = (),
    ) -> None:
        self.name = name
        self.max_wait = max_wait
        self.idle_timeout = idle_timeout or math.inf
        self.keepalive = keepalive or math.inf
        self.leak_threshold = leak_threshold
        self._enabled = enabled
        self._check_sizes(min_size, max_size)
        self._connector = connector
        self._is_clean = connector.is_clean
        self._max_lifetime = max_lifetime or math.inf
        self._check_bypass = check_bypass
        self._check_timeout = check_timeout
        self._reset_always = reset_always
        self._when_opened = tuple(when_opened)
        self.listeners = Listeners()
        self._watched = leak_threshold is not None
        for listener in listeners:
            self.add_listener(listener)
        self._begin(min_size, max_size)
        pools.add(self)
        if min_size:
            self._maintenance.wake()

    def _begin(self, min_size: int, max_size: int) -> None:
        """Begin in this process, with no connection."""
        self.state = PoolState(
            self._connector,
            self.name,
            min_size,
            max_size,
            max_lifetime=self._max_lifetime,
            listeners=self.listeners,
        )
        self._idle = self.state.idle
        self._ready = self._idle
        self._waiters = self.state.waiters
        self._reference = self.state.reference
        self._maintenance = Maintenance(self)
        self.opener = Opener(
            self.state,
            (self._maintenance.wake, *self._when_opened),
            self.name,
            enabled=self._enabled,
            reset_always=self._reset_always,
        )
        self.checker = Checker(
            self.state,
            self.opener,
            self._connector,
            self.name,
            timeout=self._check_timeout,
            reset_always=self._reset_always,
        )

    def _check_sizes(self, min_size: int, max_size: int) -> None:
        if not 0 <= min_size <= max_size or max_size < 1:
            raise ConfigurationError(
                f"pool {self.name!r}: pool.min-size {min_size} and pool.max-size {max_size} do not fit: "
                "0 <= min-size <= max-size, and max-size at least 1"
            )
        if min_size and not self._enabled:
            raise ConfigurationError(
                f"pool {self.name!r}: pool.min-size {min_size} does not fit pool.enabled = false, which keeps no "
                "connection open: leave it out"
            )

    def check(self) -> None:
        """Ask every idle connection whether it is alive, and close those that are not."""
        for pooled in self._idle.copy():
            if self.state.take_idle(pooled):
                self.checker.check_idle(pooled)

    def close_idle(self) -> None:
        """Close the connections that are idle now; those that are taken stay with the pool."""
        for pooled in self.state.withdraw_all_idle():
            self.state.destroy(pooled)

    def drain(self) -> None:
        """Close every connection that exists now, before it is used again (after a failover, a change of password)."""
        self.state.expire()
        self.close_idle()

    def taken(self) -> list[Pooled[C]]:
        """The connections that are taken now."""
        return [pooled for pooled in self.state.all() if pooled.is_open and pooled.holder]

    def add_listener(self, listener: PoolListener) -> None:
        """Tell the listener of what happens from now on. ConfigurationError if it is no PoolListener."""
        self.listeners.add(listener)
        self._watched = True

    def remove_listener(self, listener: PoolListener) -> None:
        """Tell the listener nothing more."""
        self.listeners.discard(listener)

    def suspend(self) -> None:
        """Hand out no connection, idle or new, until `resume`: who wants one waits, for `max_wait` at most.

        Those that are taken go on, and come back.
        """
        with self.state.lock:
            self.state.suspended = True
            self._ready = deque()
        self.state.run_deferred()

    def resume(self) -> None:
        """Hand out connections again, to those who wait first."""
        with self.state.lock:
            self.state.suspended = False
            self._ready = self._idle
        self.state.serve_waiters()

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
            raise self.opener.closed()
        if not ready:
            failure = self.opener.failure
            raise PoolTimeout(
                f"pool {self.name!r}: {self.state.min_size} connections were not open within {timeout:g} s"
                + (f"; the last attempt to connect failed with {failure}" if failure else "")
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
            enabled=self._enabled,
            suspended=state.suspended,
            closed=state.closed,
            failure=self.opener.failure,
            **totals,
        )

    def begin_in_child(self) -> None:
        """After a fork, in the child: begin with no connection, and leave the parent's alone."""
        parents = self.state
        for pooled in parents.all():
            pooled.pool_state = None
            inherited.append(pooled)
            inherited.extend(reference() for reference in pooled.results)
        inherited.append(parents)
        self._begin(parents.min_size, parents.max_size)
        if parents.suspended:
            self.suspend()
        if parents.closed:
            self.state.close()

    def __repr__(self) -> str:
        now = self.statistics()
        state = "closed, " if self.state.closed else "suspended, " if self.state.suspended else ""
        return (
            f"<{type(self).__name__} {self.name!r} {state}{now.idle} idle, {now.taken} taken of at most "
            f"{now.max_size}, {now.waiting} waiting>"
        )
