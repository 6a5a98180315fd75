"""Statements on a sql log's server, and what is certain after each: written, not written, or unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, TypeVarTuple

from txpool import loops
from txpool.errors import LogError, LogUnknown, PoolClosed, PoolTimeout
from txpool.log.sql.server import LogServer, Parameters
from txpool.log.sql.statements import Script
from txpool.pool import Pool

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CONNECTIONS = 10  # how many write at the same time; the server lets them share a flush
_NONE: Final[Parameters] = {}


class Sessions:
    """A small pool of connections to the log. Thread-safe; a forked child begins with none.

    Errors: LogError if nothing was written, LogUnknown if that is not known.
    """

    def __init__(self, server: LogServer) -> None:
        self._server = server
        #: What may come while a connection is taken.
        self._unusable: tuple[type[Exception], ...] = (*server.errors, PoolTimeout, PoolClosed)
        self._pool: Pool[Any] = Pool(server, name=server.name, max_size=_CONNECTIONS)

    def run(self, script: Script, parameters: Parameters = _NONE) -> list[tuple[Any, ...]]:
        """Execute a script, durable when this returns; returns its rows."""
        return self.use(self._server.run, script, parameters)

    def read(self, query: Script, parameters: Parameters = _NONE) -> list[tuple[Any, ...]]:
        """The rows of a query of what is committed now; LogError if it cannot be read."""
        try:
            return self.run(query, parameters)
        except LogUnknown as error:
            reason = self._server.describe(error.__cause__ or error)
            raise LogError(f"{self._server.name} cannot be read: {reason}") from error

    def use(self, work: Callable[[Any, *Ts], T], *arguments: *Ts) -> T:
        """Do the work on a connection; never on one that is already known to be lost."""
        if loops.used and (call := loops.current()) is not None:
            return call.in_thread(self.use, work, *arguments)
        try:
            while True:
                pooled = self._pool.take()
                if pooled.raw.session.is_alive():
                    break
                self._pool.discard(pooled)
        except self._unusable as error:
            raise self._nothing_written(error) from error
        try:
            done = self._server.do(work, pooled.raw, *arguments)
        except BaseException as error:
            self._pool.discard(pooled)
            if not isinstance(error, self._server.errors):
                raise
            raise self._certain_error(error) from error
        self._pool.give_back(pooled)
        return done

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Around a block that writes nothing: its errors become a LogError that says so."""
        try:
            yield
        except self._unusable as error:
            raise self._nothing_written(error) from error

    def close(self) -> None:
        """Close the connections; later use is a LogError."""
        self._pool.close()

    def _nothing_written(self, error: Exception) -> LogError:
        reason = self._server.describe(error)
        return LogError(f"{self._server.name} cannot be used, and nothing was written: {reason}")

    def _certain_error(self, error: Exception) -> LogError:
        """LogError if the server has answered that nothing was written; LogUnknown if that is not known."""
        name, reason = self._server.name, self._server.describe(error)
        if self._server.is_definite(error):
            return LogError(f"{name}: nothing was written: {reason}")
        self._pool.drain()  # the other connections may be cut as well
        return LogUnknown(f"{name}: what was on its way may or may not be written, now or later: {reason}")
