"""Statements on a sql log's server, and what is certain after each: written, not written, or unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, LiteralString, TypeVar, TypeVarTuple

import psycopg

from txpool.errors import LogError, LogUnknown, PoolClosed, PoolTimeout
from txpool.log.server import LogConnection, LogServer
from txpool.pool import Pool
from txpool.resources.postgresql.libpq import ends_session

Parameters = Sequence[object] | Mapping[str, object]
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CONNECTIONS = 10  # how many write at the same time; the server lets them share a flush
#: What may come while a connection is taken.
_UNUSABLE: Final = (psycopg.Error, PoolTimeout, PoolClosed)


class Sessions:
    """A small pool of connections to the log. Thread-safe; a forked child begins with none.

    Errors: LogError where nothing was written, LogUnknown where that is not known.
    """

    def __init__(self, server: LogServer) -> None:
        self._server = server
        self._pool: Pool[LogConnection] = Pool(server, name=server.name, max_size=_CONNECTIONS)

    def run(self, statement: LiteralString, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Execute one statement, durable when this returns; returns its rows."""
        return self.use(_execute, statement, parameters)

    def read(self, query: LiteralString, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """The rows of a query of what is committed now; LogError where it cannot be read."""
        try:
            return self.run(query, parameters)
        except LogUnknown as error:
            raise LogError(f"{self._server.name} cannot be read: the connection was lost") from error

    def use(self, work: Callable[[LogConnection, *Ts], T], *arguments: *Ts) -> T:
        """Do the work on a connection; never on one that is already known to be lost."""
        try:
            while not (pooled := self._pool.take()).raw.session.is_alive():
                self._pool.discard(pooled)
        except _UNUSABLE as error:
            raise self._nothing_written(error) from error
        try:
            done = work(pooled.raw, *arguments)
        except BaseException as error:
            self._pool.discard(pooled)
            if not isinstance(error, psycopg.Error):
                raise
            raise self._certain_error(error) from error
        self._pool.give_back(pooled)
        return done

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Around a block that writes nothing: its errors become a LogError that says so."""
        try:
            yield
        except _UNUSABLE as error:
            raise self._nothing_written(error) from error

    def close(self) -> None:
        """Close the connections; later use is a LogError."""
        self._pool.close()

    def _nothing_written(self, error: Exception) -> LogError:
        reason = self._server.describe(error)
        return LogError(f"{self._server.name} cannot be used, and nothing was written: {reason}")

    def _certain_error(self, error: psycopg.Error) -> LogError:
        """LogError where the server has answered with an error; LogUnknown where the session was lost."""
        name, reason = self._server.name, self._server.describe(error)
        if not ends_session(error):
            return LogError(f"{name}: nothing was written: {reason}")
        self._pool.drain()  # the other connections may be cut as well
        return LogUnknown(f"{name}: what was on its way may or may not be written, now or later: {reason}")


def _execute(raw: LogConnection, statement: LiteralString, parameters: Parameters) -> list[tuple[Any, ...]]:
    cursor = raw.execute(statement, parameters)
    return cursor.fetchall() if cursor.description else []
