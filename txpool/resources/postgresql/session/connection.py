"""Deadlines for psycopg's connect and rollback, and a check whether a connection is alive.

psycopg's own connect_timeout is for each address of each host; a rollback has none.
"""

from __future__ import annotations

from collections.abc import Generator
from contextvars import ContextVar
from functools import partial
from threading import TIMEOUT_MAX
from time import monotonic
from typing import Any, Self

import psycopg
from psycopg.pq.abc import PGconn

from txpool import loops
from txpool.resources.deadlines import ReplyTimeout, reply_timeout
from txpool.resources.postgresql.session.forks import OneProcessConnection
from txpool.resources.postgresql.session.libpq import ACTIVE, INTERVAL, LibpqSession, bounded
from txpool.resources.postgresql.session.psycopg_private import CANCEL_TIMEOUT, WaitTimeout, rolling_back, wait

_until: ContextVar[float | None] = ContextVar("until", default=None)


class DeadlineConnection(OneProcessConnection):
    """A connection whose opening has one deadline, for all of its hosts and their addresses together."""

    def __init__(self, pgconn: PGconn, *args: Any, **options: Any) -> None:
        super().__init__(pgconn, *args, **options)
        self.session = LibpqSession(pgconn)

    @classmethod
    def connect_until(cls, url: str, until: float | None, **options: Any) -> Self:
        """As `connect`; `ReplyTimeout` at `until`, by the monotonic clock."""
        token = _until.set(until)
        try:
            return cls.connect(url, **options)
        finally:
            _until.reset(token)

    def wait_in_loop(
        self, gen: Generator[Any, Any, Any], interval: float = INTERVAL, timeout: float | None = None
    ) -> Any:
        """As psycopg's wait(); in a call of a task, the loop goes on meanwhile."""
        call = loops.current()
        if call is None:
            return super().wait(gen, interval, timeout)
        if timeout is not None and timeout <= 0:  # it only looks
            return super().wait(gen, interval, timeout)
        try:
            if timeout is not None:
                return _steps_within(call, gen, self.pgconn.socket, timeout)
            return call.steps(gen, self.pgconn.socket)
        except Exception:
            raise
        except BaseException:  # the task is cancelled, and then what it executes, or the connection would hang
            if int(self.pgconn.transaction_status) == ACTIVE:
                try:
                    call.in_thread(partial(self.cancel_safe, timeout=CANCEL_TIMEOUT))
                    call.steps(bounded(gen, monotonic() + CANCEL_TIMEOUT), self.pgconn.socket, INTERVAL)
                except psycopg.errors.QueryCanceled:
                    pass
                except BaseException:
                    self.pgconn.finish()
            raise

    @classmethod
    def opening(cls, steps: Any) -> Any:
        return bounded(steps, _until.get(), "connection timeout: the server has not answered in time")


def _steps_within(call: loops.TaskCall, gen: Generator[Any, Any, Any], descriptor: int, timeout: float) -> Any:
    """As psycopg's wait() with a timeout, as notifies() has it."""
    until = monotonic() + timeout
    try:
        events = next(gen)
        while True:
            events = gen.send(call.wait_for(descriptor, int(events), max(until - monotonic(), 0)))
            if monotonic() >= until:
                raise WaitTimeout("wait timeout expired")
    except StopIteration as done:
        return done.value


def deadline_after(timeout: float | None) -> float | None:
    """The time of the monotonic clock that is `timeout` seconds from now; None is for ever."""
    return None if timeout is None else monotonic() + timeout


def check_alive(raw: DeadlineConnection, timeout: float | None) -> None:
    """Send an empty query, and wait for the answer. Raises if the connection is lost; TimeoutError after `timeout`.

    After an error the connection must be closed.
    """
    session = raw.session
    if not session.is_alive():
        raise psycopg.OperationalError("the server has closed the connection")
    try:
        session.run("", deadline_after(timeout))
    except ReplyTimeout:
        raise TimeoutError(f"the server has not answered within {timeout:g} s") from None


def roll_back(raw: psycopg.Connection[Any], until: float | None) -> None:
    """As psycopg's rollback(); `ReplyTimeout` if it, or another thread's statement, takes longer than `until`."""
    if until is None:
        raw.rollback()
        return
    if not raw.lock.acquire(timeout=min(max(until - monotonic(), 0), TIMEOUT_MAX)):
        raise reply_timeout(psycopg.OperationalError)("another thread is executing a statement on the connection")
    try:
        wait(bounded(rolling_back(raw), until), raw.pgconn.socket, INTERVAL)
    finally:
        raw.lock.release()


def _wait_in_loops() -> None:
    # Only now, since each statement would pay for a method of ours around psycopg's.
    DeadlineConnection.wait = DeadlineConnection.wait_in_loop  # type: ignore[method-assign, assignment]


loops.when_used(_wait_in_loops)
