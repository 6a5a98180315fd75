"""An end for the steps that psycopg takes by itself: it has none of its own but one for each address of a connect."""

from __future__ import annotations

from contextvars import ContextVar
from threading import TIMEOUT_MAX
from time import monotonic
from typing import Any, Self

import psycopg

from txpool.resources.postgresql.libpq import INTERVAL, ReplyTimeout, Session, bounded
from txpool.resources.postgresql.psycopg_private import ConnectionInSteps, rolling_back, wait

_until: ContextVar[float | None] = ContextVar("until", default=None)


class DeadlineConnection(ConnectionInSteps):
    """A connection that can be told how long its opening may take, with all of its hosts and their addresses."""

    @classmethod
    def connect_until(cls, url: str, until: float | None, **options: Any) -> Self:
        """As `connect`; `ReplyTimeout` once that time of the monotonic clock has come."""
        token = _until.set(until)
        try:
            return cls.connect(url, **options)
        finally:
            _until.reset(token)

    @classmethod
    def opening(cls, steps: Any) -> Any:
        return bounded(steps, _until.get(), "connection timeout: the server has not answered in time")


def deadline_after(timeout: float | None) -> float | None:
    """So many seconds from now, by the monotonic clock; None stays for ever."""
    return None if timeout is None else monotonic() + timeout


def check_alive(raw: psycopg.Connection[Any], timeout: float | None) -> None:
    """Ask the server for a sign of life. TimeoutError where none has come in time: the connection is of no use then."""
    session = Session(raw)
    if not session.is_alive():
        raise psycopg.OperationalError("the server has closed the connection")
    try:
        session.run("", deadline_after(timeout))
    except ReplyTimeout:
        raise TimeoutError(f"the server has not answered within {timeout:g} s") from None


def roll_back(raw: psycopg.Connection[Any], until: float | None) -> None:
    """As psycopg's rollback(); `ReplyTimeout` where it, or a statement of another thread, has not ended by then."""
    if until is None:
        raw.rollback()
        return
    if not raw.lock.acquire(timeout=min(max(until - monotonic(), 0), TIMEOUT_MAX)):
        raise ReplyTimeout("another thread is executing a statement on it")
    try:
        wait(bounded(rolling_back(raw), until), raw.pgconn.socket, interval=INTERVAL)
    finally:
        raw.lock.release()
