"""The undocumented parts of psycopg that txpool uses, and for each why no public one serves.

pyproject.toml bounds psycopg's version for this file: no other file names a private part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, Self
from weakref import ref

import psycopg
from psycopg import _compat, generators, pq, sql, waiting
from psycopg._preparing import Prepare
from psycopg._queries import PostgresQuery
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.copy import LibpqWriter, Writer
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import TupleRow, tuple_row

from txpool import loops
from txpool.config.secrets import in_errors

_OPEN = int(pq.ConnStatus.OK)
_FATAL_ERROR = int(pq.ExecStatus.FATAL_ERROR)
_ABORTED = int(pq.ExecStatus.PIPELINE_ABORTED)
_SYNC = int(pq.ExecStatus.PIPELINE_SYNC)
# Names of their own: Python 3.11 calls a function for each member that is read from an Enum.
_PREPARE_NOW, _NOT_PREPARED = Prepare.SHOULD, Prepare.NO
#: What psycopg's wait() raises at its timeout: notifies() ends by it.
WaitTimeout: type[Exception] = psycopg.errors._WaitTimeout
#: Seconds that a cancel of a statement may take.
CANCEL_TIMEOUT = 5.0
#: The class of template strings, which Python has from 3.14 on; before that nothing is of it.
Template: type[Any] = _compat.Template
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
def wait(steps: Generator[Any, Any, Any], descriptor: int, interval: float) -> Any:
    if loops.used and (call := loops.current()) is not None:
        return call.steps(steps, descriptor, interval)
    return waiting.wait(steps, descriptor, interval=interval)


#: psycopg's adapters. Maps share their parts until one of them is changed.
_ADAPTERS = AdaptersMap(psycopg.adapters)
_PARTS = _ADAPTERS._dumpers, _ADAPTERS._loaders, _ADAPTERS._dumpers_by_oid, _ADAPTERS.types._registry
_MODULES = frozenset({"psycopg", "psycopg_binary", "psycopg_c"})
_DUMPERS = {dumper for dumpers in _ADAPTERS._dumpers.values() for dumper in dumpers.values()}
#: Whether nobody had registered others before this was imported.
_ORIGINAL = all(dumper.__module__.partition(".")[0] in _MODULES for dumper in _DUMPERS)


def executed_by(cursor: psycopg.Cursor[Any]) -> tuple[list[PGresult], bytes | str]:
    """All results of what a cursor has executed last, and the SQL as `sent_by` has it.

    `Cursor.results()` and `nextset()` move the user's cursor.
    """
    given: object = cursor._last_query if cursor._query is None else None
    return cursor._results, given if type(given) is str else sent_by(cursor)


def sent_by(cursor: psycopg.Cursor[Any]) -> bytes | str:
    """The SQL that a cursor has sent last; empty if it is not known, as of a prepared statement that failed.

    Nothing public returns it.
    """
    query: PostgresQuery | None = cursor._query  # None before it sends, and of a prepared statement
    if query is not None:
        return query.query if isinstance(query.query, bytes) else b""  # psycopg has refused what is no text
    given: object = cursor._last_query  # as its user gave it; None after one that failed
    if isinstance(given, sql.Composable):
        return given.as_bytes(cursor)
    return given if isinstance(given, bytes | str) else b""


def statement_in(steps: object) -> Any:
    """The statement that the steps of a cursor's would execute, before the first of them; None if they have none.

    psycopg's own cursors over a connection of txpool's give it nothing else.
    """
    frame = getattr(steps, "gi_frame", None)
    given: dict[str, Any] = {} if frame is None else frame.f_locals
    return given.get("query", given.get("statement"))


def answer_alone(cursor: psycopg.Cursor[Any]) -> PGresult | None:
    """The result of a command; None if the cursor keeps more of what it has executed.

    That would be columns, their loaders and rows, or the parameters of a statement that psycopg has not prepared.
    """
    result = cursor.pgresult
    return None if result is None or result.nfields or cursor._query is not None else result


def has_page(cursor: psycopg.ServerCursor[Any]) -> bool:
    """Whether the next row of an iteration has come with the page before it."""
    rows = getattr(cursor, "_iter_rows", None)  # psycopg 3.3 has it
    return rows is not None and cursor._page_pos < len(rows)


def part_that_has_arrived(copy: psycopg.Copy) -> Any:
    """The next part of COPY TO's data, empty at its end; None if `read()` would wait for it, or behind the end.

    Behind the last part it waits for the COPY's result: libpq cannot be asked twice for what it has told once.
    """
    if copy._finished:
        return None
    steps = copy._read_gen()
    try:
        events = next(steps)
    except StopIteration as found:
        return found.value
    if copy.connection.pgconn.is_busy():  # it is not within a COPY
        return copy.connection.wait(_going_on(steps, events))
    steps.close()
    return None


def _going_on(steps: Generator[Any, Any, Any], events: Any) -> Generator[Any, Any, Any]:
    """These steps, of which the first was taken and has asked for these events."""
    while True:
        try:
            events = steps.send((yield events))
        except StopIteration as done:
            return done.value


def has_psycopgs_adapters(raw: psycopg.Connection[Any]) -> bool:
    """Whether nobody has registered anything on the connection, nor for all connections before it was opened.

    A cursor keeps the instances of its dumpers for a statement that comes again. psycopg's own are the same for each
    statement, but for the session's encoding.
    """
    adapters = raw._adapters or raw.adapters
    parts = adapters._dumpers, adapters._loaders, adapters._dumpers_by_oid, adapters.types._registry
    return _ORIGINAL and parts == _PARTS


def cursor_with(raw: psycopg.Connection[Any], result: PGresult) -> psycopg.Cursor[Any]:
    """A cursor that has psycopg's adapters and has executed what had this result. Only psycopg itself sets them."""
    cursor = psycopg.Cursor(raw, row_factory=tuple_row)
    cursor._adapters = AdaptersMap(_ADAPTERS)
    cursor._adapters._register_loader_callback = partial(cursor._loaders_changed, ref(cursor))
    cursor._tx = Transformer(cursor)
    cursor._set_results([result])
    return cursor


def executing_after(  # noqa: PLR0912 - each call costs every statement
    beginning: str,
    cursor: psycopg.Cursor[Any],
    query: Any,
    params: Any = None,
    *,
    prepare: bool | None = None,
    question: str = "",
    answers: list[PGresult] | None = None,
) -> Generator[Any, Any, None]:
    """The steps of a cursor's execute(), with a BEGIN before the statement, in one message.

    If one of them fails, what follows it is not executed. As `Cursor._execute_gen`, which waits for its BEGIN. The
    message is a pipeline of libpq's: psycopg's own leaves the answers to later calls. COPY is not to be in it.
    A `question` comes behind BEGIN, and is answered before the statement ends. `answers`, if given, gets all answers.
    """
    if cursor.closed:
        raise psycopg.InterfaceError("the cursor is closed")
    pgconn, prepared = cursor._pgconn, cursor._conn._prepared
    cursor._reset()
    if cursor._last_query is not query:
        cursor._last_query = None
        cursor._tx = Transformer(cursor)
    statement = cursor._convert_query(query, params)
    kind, name = prepared.get(statement, prepare)
    if answers is None:
        answers = []
    try:
        refusal = _send_after(beginning, cursor, statement, kind, name, question=question)
        yield from generators.send(pgconn)
        while True:
            # The server answers at once, but hardly ever before this looks. To look releases the GIL, which costs more.
            if not answers or pgconn.is_busy():
                while not (yield waiting.WAIT_R) and pgconn.is_busy():  # it may have come while the rest was sent
                    continue
                pgconn.consume_input()
                if pgconn.is_busy():
                    continue
            answer = pgconn.get_result()
            if answer is None:
                raise psycopg.OperationalError("the connection is lost")
            if answer.status == _SYNC:
                break
            answers.append(answer)
            pgconn.get_result()  # None: libpq returns it after each answer, and reads nothing for that
        pgconn.exit_pipeline_mode()
    except psycopg.DatabaseError:
        read_farewell(pgconn, answers)
        _raise_first(answers, cursor)
        raise
    _tell_notifications(pgconn)  # only once all answers are read: a handler may raise anything
    results = [answers.pop()]
    if results[0].status == _ABORTED:  # since one before it has failed
        _raise_first(answers, cursor)
    if refusal is not None:
        cursor._check_results(results)
        raise refusal
    key = prepared.maybe_add_to_cache(statement, kind, name)
    if key is not None:
        prepared.validate(key, kind, name, results)
    cursor._check_results(results)
    cursor._set_results(results)
    cursor._last_query = query
    if prepared._to_flush:
        yield from prepared.maintain_gen(cursor._conn)


def _send_after(
    beginning: str, cursor: psycopg.Cursor[Any], statement: PostgresQuery, kind: Prepare, name: bytes, *, question: str
) -> psycopg.Error | None:
    """Returns the error of a statement that libpq does not take, as of too many parameters: then BEGIN goes alone."""
    pgconn, refusal = cursor._pgconn, None
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(beginning.encode(), None)
    if question:
        pgconn.send_query_params(question.encode(), None)
        pgconn.send_flush_request()  # the answers must not wait for the statement
    try:
        if kind is _PREPARE_NOW:
            cursor._send_prepare(name, statement)
        if kind is _NOT_PREPARED:
            cursor._execute_send(statement, force_extended=True)
        else:
            cursor._send_query_prepared(name, statement)
    except psycopg.Error as error:
        refusal = error
    try:
        pgconn.pipeline_sync()
    except psycopg.OperationalError:  # whose words are others than libpq's
        raise psycopg.OperationalError(pgconn.get_error_message()) from None
    return refusal


def _tell_notifications(pgconn: PGconn) -> None:
    """Tell what has come between the answers, as psycopg does when it fetches."""
    notify = pgconn.notify_handler
    while notify is not None and (notification := pgconn.notifies()) is not None:
        notify(notification)


def read_farewell(pgconn: PGconn, results: list[PGresult]) -> bool:
    """Add the server's last error, if that has come and the connection is lost: it says more than the end after it.

    Whether there is one.
    """
    if pgconn.status == _OPEN:
        return False
    with suppress(psycopg.Error):
        result = pgconn.get_result()  # does not wait if the connection is closed
        if result is not None and result.error_field(pq.DiagnosticField.SQLSTATE) is not None:
            results.append(result)
            return True
    return False


def cancel_message(raw: psycopg.Connection[Any]) -> None:
    """After an interrupt within a message of `executing_after`, cancel what the server executes, and may go on with."""
    pgconn = raw.pgconn
    if pgconn.status == _OPEN and pgconn.pipeline_status:
        with suppress(psycopg.Error):
            raw.cancel_safe(timeout=CANCEL_TIMEOUT)


def _raise_first(answers: list[PGresult], cursor: psycopg.Cursor[Any]) -> None:
    for answer in answers:
        if answer.status == _FATAL_ERROR:
            raise psycopg.errors.error_from_result(answer, encoding=cursor._encoding)


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
