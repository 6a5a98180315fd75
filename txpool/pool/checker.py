"""Whether a connection can still be used: the check of an idle one, and the reset of one that came back."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Generic

from txpool import loops
from txpool.errors import described
from txpool.pool.opener import Opener
from txpool.pool.pooled import C, Connector, Pooled
from txpool.pool.report import without_frames
from txpool.pool.state import PoolState
from txpool.pool.waiting import CheckResult, TakeBudget

log = logging.getLogger("txpool.pool")


class Checker(Generic[C]):
    """Checks and resets the connections of one pool, in one process. Thread-safe; a connection has one user."""

    def __init__(
        self,
        state: PoolState[C],
        opener: Opener[C],
        connector: Connector[C],
        name: str,
        *,
        timeout: float,
        reset_always: bool,
    ) -> None:
        self._state = state
        self._opener = opener
        self._connector = connector
        self._name = name
        self._timeout = timeout
        self._reset_always = reset_always

    def refresh(self, pooled: Pooled[C], budget: TakeBudget) -> Pooled[C]:
        """This connection if it is alive; else close it, and return another idle one or a new one."""
        try:
            while True:
                if not pooled.is_open:
                    break
                result = CheckResult.DEAD
                if monotonic() < pooled.expires:
                    result = self._check(pooled, budget.check(self._timeout))
                if result is CheckResult.ALIVE:
                    return pooled
                pooled = self._state.replace(pooled)
                pooled = self._after(result, pooled, budget)
            return self._opener.open_within(pooled, budget)
        except BaseException:
            self._state.give_up(pooled)
            raise

    def _after(self, result: CheckResult, slot: Pooled[C], budget: TakeBudget) -> Pooled[C]:
        """What to go on with: after one that kept silent another idle one, if there is time to check it."""
        if result is CheckResult.SILENT:
            budget.silent += 1
            if budget.left() <= 0:
                raise self._opener.timed_out(budget, hanging=True)
            if budget.has_checks():
                return self._state.idle_instead_of(slot)
        return slot

    def check_idle(self, pooled: Pooled[C]) -> None:
        """Check a connection that was taken out of the idle ones; put it back, or close it if it is dead."""
        if self._check(pooled, self._timeout) is CheckResult.ALIVE and monotonic() < pooled.expires:
            self._state.put_back(pooled)
        else:
            self._state.destroy(pooled)

    def _check(self, pooled: Pooled[C], timeout: float) -> CheckResult:
        state = self._state
        result = CheckResult.ALIVE
        failure: Exception | None = None
        try:
            loops.in_thread(self._connector.ping, pooled.raw, timeout)
        except TimeoutError as error:
            result, failure = CheckResult.SILENT, without_frames(error)
            log.warning("pool %r: a connection was closed, it did not answer within %.1f s", self._name, timeout)
        except Exception as error:
            result, failure = CheckResult.DEAD, without_frames(error)
            log.info("pool %r: a connection was found dead: %s", self._name, described(error))
            self.doubt_idle()
        except BaseException:
            state.destroy(pooled)
            raise
        pooled.checked_at = monotonic()
        pooled.doubted = False
        state.count("checks")
        if result is not CheckResult.ALIVE:
            state.count("check_failures")
            if state.listeners:
                state.notify_holding(pooled, "check_failed", pooled.raw, failure)
        elif state.listeners:
            state.notify_holding(pooled, "checked", pooled.raw)
        return result

    def make_clean(self, pooled: Pooled[C]) -> None:
        """Reset a connection that was given back, and hand it on; close it if it has expired or cannot be reset."""
        if pooled.dropped or self._state.deferred_in_finaliser(self.make_clean, pooled):
            return
        if pooled.returned_at >= pooled.expires:
            self._state.destroy(pooled)
        elif self._reset(pooled):
            self._state.put(pooled)
        else:
            self.doubt_idle()
            self._state.destroy(pooled)

    def doubt_idle(self) -> None:
        """Have each idle connection checked when it is taken, however short it has been idle: one was lost."""
        for pooled in self._state.idle.copy():
            pooled.doubted = True

    def _reset(self, pooled: Pooled[C]) -> bool:
        state = self._state
        try:
            loops.in_thread(self._connector.reset, pooled.raw, self._timeout)
            reason = "" if self._connector.is_clean(pooled.raw) else "it is not clean after the reset"
        except Exception as error:
            reason = described(error)
        except BaseException:
            state.destroy(pooled)
            raise
        if reason:
            state.count("reset_failures")
            log.warning("pool %r: a connection was closed, it could not be reset: %s", self._name, reason)
            if state.listeners:
                state.notify_holding(pooled, "reset_failed", pooled.raw, reason)
            return False
        pooled.dirty = self._reset_always
        return True
