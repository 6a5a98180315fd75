"""Simple-query messages over a psycopg connection, sent and received apart, as split-phase branches need it.

psycopg's own methods send, wait and check in one call, and put a BEGIN before the message. Here nothing is added, a
`send` never waits, and an interrupted `receive` loses nothing: the next one goes on where it stopped.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Generator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from txpool import loops
from txpool.errors import translate
from txpool.resources.deadlines import reply_timeout
from txpool.resources.postgresql.session.psycopg_private import read_farewell, sending, wait
from txpool.sql.dialects import POSTGRESQL

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

# Plain numbers, as psycopg's C implementation returns them: to make an enum of each costs more than the call.
IDLE = int(pq.TransactionStatus.IDLE)
ACTIVE = int(pq.TransactionStatus.ACTIVE)
INTRANS = int(pq.TransactionStatus.INTRANS)
INERROR = int(pq.TransactionStatus.INERROR)

#: libpq's status of a connection that is not known to be lost.
OPEN = int(pq.ConnStatus.OK)
COMMAND_OK = int(pq.ExecStatus.COMMAND_OK)
_FATAL_ERROR = int(pq.ExecStatus.FATAL_ERROR)
_COPYING = frozenset({int(pq.ExecStatus.COPY_IN), int(pq.ExecStatus.COPY_OUT), int(pq.ExecStatus.COPY_BOTH)})
_WHY_NOT_OPEN = {
    IDLE: "the transaction has ended before it",
    ACTIVE: "a statement is still executing",
    INERROR: "a statement before it has failed",
}
#: Characters of a statement that an error shows.
_SHOWN = 200
#: Characters of a message that is sent at once.
_SHORT = 1000
#: How often a wait checks the clock and signals, in seconds.
INTERVAL = 0.1
_INTERVAL_MILLISECONDS = int(INTERVAL * 1000)
# Errors that end a session: whether the message was executed is unknown.
_SESSION_ENDING = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"})


class LibpqSession:
    """One message at a time over one connection, for as long as that is open. Used by one thread at a time."""

    __slots__ = ("_pgconn", "_poll", "_unsent", "results")

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        readable = select.poll()
        readable.register(pgconn.socket, select.POLLIN)
        self._poll = readable.poll
        self._unsent = False
        #: The results received so far of the last message.
        self.results: list[PGresult] = []

    @property
    def status(self) -> int:
        """libpq's transaction status: IDLE, ACTIVE, INTRANS, INERROR, or another number if it is lost."""
        return int(self._pgconn.transaction_status)

    def is_alive(self) -> bool:
        """Whether the server has not closed the connection, as far as is known without waiting."""
        pgconn = self._pgconn
        if self._poll(0):  # it is closed, or has something to read
            try:
                # The first read returns the server's last message, and only the second finds the connection closed.
                pgconn.consume_input()
                pgconn.consume_input()
            except psycopg.Error:
                return False
        return pgconn.status == OPEN

    def send(self, message: str) -> None:
        """Send without waiting; psycopg.OperationalError if the connection is lost."""
        pgconn = self._pgconn
        self.results = []
        pgconn.send_query(message.encode())
        # What came before was answered, so a short message fits into the socket.
        self._unsent = len(message) > _SHORT and pgconn.flush() != 0

    def receive(self, until: float | None = None) -> list[PGresult]:  # noqa: PLR0912 - each call costs every commit
        """Wait for the whole answer; an error of the server is one of its results, a lost connection raises.

        `ReplyTimeout` if the answer has not come at `until`, by the monotonic clock: then the connection must be
        closed.
        """
        if self._unsent:
            wait(bounded(sending(self._pgconn), until), self._pgconn.socket, INTERVAL)
            self._unsent = False
        pgconn, results = self._pgconn, self.results
        poll: Callable[[int], object] = self._poll
        if loops.used and (call := loops.current()) is not None:
            poll = partial(_poll_in_loop, call, pgconn, until, [])
        try:
            # The answer is hardly ever there before the wait. If it is, an interval passes.
            if not results and poll(_INTERVAL_MILLISECONDS):
                pgconn.consume_input()
            while True:
                # Most results come together with the first, and need no wait of their own.
                while True:  # not `while` with a condition: see tests/unit/test_interrupts.py
                    if not pgconn.is_busy():
                        break
                    if poll(_INTERVAL_MILLISECONDS):
                        pgconn.consume_input()
                    else:
                        pgconn.flush()  # if even a short one did not fit
                    # Notices and notifications are no answer, however many come.
                    if until is not None and monotonic() > until and pgconn.is_busy():
                        raise reply_timeout(psycopg.OperationalError)("the server has not answered in time")
                result = pgconn.get_result()
                if result is None:
                    return results
                if results and result.status in _COPYING:  # COPY's result comes again and again
                    raise psycopg.ProgrammingError("COPY needs its data, and there is none here")
                results.append(result)
        except psycopg.Error:
            if failure(results) is None and not read_farewell(pgconn, results):
                raise
        return results

    def run(self, message: str, until: float | None = None) -> list[PGresult]:
        """Send and receive; raises the server's error."""
        self.send(message)
        return without_failure(self.receive(until))

    def run_prepared(self, name: str, *values: str) -> PGresult:
        """Execute a statement that the session has prepared by this name; raises the server's error."""
        self.results = []
        self._pgconn.send_query_prepared(name.encode(), [value.encode() for value in values])
        self._unsent = self._pgconn.flush() != 0
        (result,) = without_failure(self.receive())
        return result

    def quoted(self, text: str) -> str:
        """The text as an SQL literal."""
        if text.isascii() and "'" not in text and "\\" not in text and "\0" not in text:
            return f"'{text}'"  # as all names of ours
        return bytes(pq.Escaping(self._pgconn).escape_literal(text.encode())).decode()


def _poll_in_loop(call: loops.TaskCall, pgconn: PGconn, until: float | None, looked: list[None], _: int) -> int:
    if not looked:  # first at what has come while other tasks went on: to switch to the loop costs more
        looked.append(None)
        return loops.READ
    # One more turn if it did not fit; libpq may have to read before it can write.
    events = loops.READ | loops.WRITE if pgconn.flush() else loops.READ
    return call.wait_for(pgconn.socket, events, None if until is None else max(until - monotonic(), 0))


def bounded(steps: Any, until: float | None, message: str = "the server has not answered in time") -> Any:
    """A generator of psycopg's steps with a deadline: it raises `ReplyTimeout` at `until`, by the monotonic clock."""
    return steps if until is None else _bounded(steps, until, message)


def _bounded(steps: Generator[Any, Any, Any], until: float, message: str) -> Generator[Any, Any, Any]:
    try:
        answer = None
        while True:
            if monotonic() > until:
                raise reply_timeout(psycopg.OperationalError)(message)
            try:
                awaited = steps.send(answer)
            except StopIteration as done:
                return done.value
            answer = yield awaited  # psycopg's waits come back once an interval
    finally:
        steps.close()


def without_failure(results: list[PGresult]) -> list[PGresult]:
    """The results; raises the first error among them."""
    for result in results:
        if result.status == _FATAL_ERROR:
            raise _error_of(result)
    return results


def failure(results: list[PGresult]) -> psycopg.Error | None:
    """The first error among the results, of psycopg's class and txpool's; None if there is none."""
    for result in results:
        if result.status == _FATAL_ERROR:
            return _error_of(result)
    return None


def _error_of(result: PGresult) -> psycopg.Error:
    error = psycopg.errors.error_from_result(result)
    translate(error)
    return error


def ends_session(error: psycopg.Error) -> bool:
    """Whether the error has ended the session: then it is unknown whether the message was executed."""
    state = error.sqlstate
    return state is None or state.startswith("08") or state in _SESSION_ENDING


def why_not_open(raw: PsycopgRawConnection) -> str:
    """A transaction status other than INTRANS, in words; if a statement has failed, also which."""
    status = int(raw.pgconn.transaction_status)
    why = _WHY_NOT_OPEN.get(status, "the connection was lost before it")
    failure = getattr(raw, "failure", "")
    return f"{why}, and its error was caught ({failure})" if status == INERROR and failure else why


def shown(statement: bytes | str) -> str:
    """A statement for an error: one line, not too long, without its literals, which may be secret."""
    text = statement if isinstance(statement, str) else statement.decode(errors="replace")
    text = " ".join(POSTGRESQL.without_literals(text).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def value(result: PGresult, row: int = 0) -> str | None:
    """The first value of a row of a result, as text."""
    found = result.get_value(row, 0)
    return None if found is None else found.decode()
