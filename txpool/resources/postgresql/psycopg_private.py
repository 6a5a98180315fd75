"""The undocumented parts of psycopg that txpool uses, and for each why no public one serves.

pyproject.toml bounds psycopg's version for this file: no other file names a private part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from operator import attrgetter
from typing import Any, Self
from weakref import ref

import psycopg
from psycopg import generators, sql, waiting
from psycopg._queries import PostgresQuery
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.copy import LibpqWriter, Writer
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import TupleRow, tuple_row

from txpool.config.secrets import in_errors

#: All results of a message with several statements. `Cursor.results()` and `nextset()` move the user's cursor.
results_of: Callable[[psycopg.Cursor[Any]], list[PGresult]] = attrgetter("_results")
#: The converted statement, with its parameters, that a cursor has sent last; None where psycopg had it prepared.
unprepared_query: Callable[[psycopg.Cursor[Any]], PostgresQuery | None] = attrgetter("_query")
#: A cursor's adapters. `Cursor.adapters` is a call of Python.
adapters_of: Callable[[psycopg.Cursor[Any]], AdaptersMap] = attrgetter("_adapters")
#: The last command's tag, in bytes as those of the results are. `Cursor.statusmessage` decodes it at each call.
tag_of: Callable[[psycopg.Cursor[Any]], bytes | None] = attrgetter("_statusmessage")
#: The attribute in which a connection counts its open blocks of conn.transaction(). An abandoned block stays counted.
OPEN_BLOCKS = "_num_transactions"
#: The attribute with a connection's two-phase transaction: its xid, and whether it is prepared; or None.
TWO_PHASE = "_tpc"
two_phase_of: Callable[[psycopg.Connection[Any]], tuple[psycopg.Xid, bool] | None] = attrgetter(TWO_PHASE)
#: The attribute with the notifications that came while nobody listened, for the next notifies().
BACKLOG = "_notifies_backlog"
#: Waits for the steps of a generator. `Connection.wait()` takes the connection's lock, which a cancel needs.
wait = waiting.wait


def sent_by(cursor: psycopg.Cursor[Any]) -> bytes:
    """The SQL that a cursor has sent last; empty where it is not known, as of a prepared statement that failed.

    Nothing public returns it.
    """
    query = unprepared_query(cursor)  # None before it sends, too
    if query is not None:
        return query.query
    given: object = cursor._last_query  # as its user gave it; None after one that failed
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, sql.Composable):
        return given.as_bytes(cursor)
    return given if isinstance(given, bytes) else b""


def cursor_with(raw: psycopg.Connection[Any], result: PGresult, adapters: AdaptersMap) -> psycopg.Cursor[Any]:
    """A cursor that had these adapters and has executed what had this result. Only psycopg itself sets them."""
    cursor = psycopg.Cursor(raw, row_factory=tuple_row)
    cursor._adapters = AdaptersMap(adapters)
    cursor._adapters._register_loader_callback = partial(cursor._loaders_changed, ref(cursor))
    cursor._tx = Transformer(cursor)
    cursor._set_results([result])
    return cursor


def write_through(writer: Writer, cursor: psycopg.Cursor[Any]) -> None:
    """Have a COPY's writer, which was made with a cursor of ours, use psycopg's. Only its constructor takes one."""
    if isinstance(writer, LibpqWriter):
        writer.cursor, writer.connection, writer._pgconn = cursor, cursor.connection, cursor.connection.pgconn


def sending(pgconn: PGconn) -> Generator[Any, Any, None]:
    """The steps of sending libpq's output buffer. Connection has no send without an execute."""
    steps: Generator[Any, Any, None] = generators.send(pgconn)
    return steps


def rolling_back(raw: psycopg.Connection[Any]) -> Generator[Any, Any, None]:
    """The steps of rollback(), which itself has no timeout."""
    steps: Generator[Any, Any, None] = raw._rollback_gen()
    return steps


class ConnectionInSteps(psycopg.Connection[TupleRow]):
    """A connection whose opening can be bounded as a whole: connect_timeout is one for each address of each host."""

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> Any:
        return cls.opening(super()._connect_gen(*args, **options))

    @classmethod
    def opening(cls, steps: Generator[Any, Any, Self]) -> Generator[Any, Any, Self]:
        """The steps of opening it, bounded or not."""
        return steps


@in_errors
def _forget_connection(error: BaseException) -> None:
    """Remove libpq's connection from an error: it contains the password."""
    if getattr(error, "_pgconn", None) is not None:
        vars(error)["_pgconn"] = None
