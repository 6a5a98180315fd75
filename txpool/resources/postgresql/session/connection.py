"""Deadlines for psycopg's connect and rollback, and a check whether a connection is alive.

psycopg's own connect_timeout is for each address of each host; a rollback has none.
"""

from __future__ import annotations

from contextvars import ContextVar
from threading import TIMEOUT_MAX
from time import monotonic
from typing import Any, Self

import psycopg
from psycopg.pq.abc import PGconn

from txpool.resources.deadlines import ReplyTimeout, reply_timeout
from txpool.resources.postgresql.session.forks import OneProcessConnection
from txpool.resources.postgresql.session.libpq import INTERVAL, LibpqSession, bounded
from txpool.resources.postgresql.session.psycopg_private import rolling_back, wait

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

    @classmethod
    def opening(cls, steps: Any) -> Any:
        return bounded(steps, _until.get(), "connection timeout: the server has not answered in time")


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
        wait(bounded(rolling_back(raw), until), raw.pgconn.socket, interval=INTERVAL)
    finally:
        raw.lock.release()
