"""The session of mysqlclient's connection: txpool's own commands, several in one message, and their answers.

mysqlclient cannot send a command before the one before is answered. So of several commands, those that take no time are
answered first, and the one that waits for the disk is on its way when `send` returns. If the session takes several
statements in one message, as it does by default (multi_statements), they share one round trip.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import MySQLdb
from MySQLdb.constants import CR

from txpool.errors import translate
from txpool.resources.deadlines import ReplyTimeout, reply_timeout, within_step
from txpool.resources.mysql.session.protocol import CommandResult, after_what_went_ahead, ends_session

if TYPE_CHECKING:
    from txpool.resources.mysql.mysqlclient.connection import MySQLdbRawConnection

#: The commands that wait for the disk.
_SLOW: Final = ("xa prepare", "xa commit", "xa rollback", "commit")
_OK: Final = CommandResult()


class MySQLdbSession:
    """As `Session`: of several commands, the first that waits for the disk is sent without waiting."""

    __slots__ = (
        "_answers",
        "_hung_up",
        "_in_message",
        "_readable",
        "_rest",
        "_sent",
        "_went_ahead",
        "raw",
        "takes_several",
    )

    def __init__(self, raw: MySQLdbRawConnection, *, takes_several: bool) -> None:
        self.raw = raw
        #: Whether a message may have several statements; what follows one that fails is not executed.
        self.takes_several = takes_several
        self._hung_up, self._readable = select.poll(), select.poll()
        self._hung_up.register(raw.fileno(), select.POLLRDHUP)
        self._readable.register(raw.fileno(), select.POLLIN)
        self._answers: list[CommandResult] = []
        #: The first of the answers is to what went ahead.
        self._went_ahead = False
        #: What is not answered yet, and how many of these statements are in the message that was sent.
        self._rest: Sequence[str] = ()
        self._in_message = 0
        #: The last message was sent: no interrupt came before that, and another one before the connection was closed.
        self._sent = False

    def is_alive(self) -> bool:
        return not self.raw.lost and not self._hung_up.poll(0)

    def send(self, *statements: str) -> None:
        raw = self.raw
        if raw.lost:
            raw.break_off()
            raise MySQLdb.OperationalError(CR.SERVER_GONE_ERROR, "the connection was lost before")
        self._sent = False
        raw.unread = len(statements)
        self._answers = []
        self._went_ahead = bool(raw.ahead)
        if raw.ahead:
            statements = (raw.ahead, *statements)
        slow, last = 0, len(statements) - 1
        while slow < last and not statements[slow].startswith(_SLOW):
            slow += 1
        try:
            if slow:
                self._send(statements[:slow])
                self._receive(None)
            self._send(statements[slow:])
        except BaseException as error:
            self._break_off(error)
            raise
        raw.ahead = ""
        self._sent = True

    def receive(self, until: float | None = None) -> list[CommandResult]:
        raw = self.raw
        if raw.dead or not (raw.unread and self._sent):
            raise MySQLdb.OperationalError(CR.SERVER_LOST, "the answer was lost in an interrupt")
        try:
            self._receive(until)
        except BaseException as error:
            self._break_off(error)
            raise
        raw.unread = 0
        return after_what_went_ahead(raw, self._answers) if self._went_ahead else self._answers

    def _send(self, statements: Sequence[str]) -> None:
        """Send a message: with all of them, or with the first."""
        self._rest = statements
        self._in_message = len(statements) if self.takes_several else 1
        self.raw.send_query("; ".join(statements[: self._in_message]).encode())

    def _receive(self, until: float | None) -> None:
        """Receive the answers to the message that was sent, and send and receive what was not executed by it."""
        raw, answers = self.raw, self._answers
        while True:
            # A signal is handled between two waits.
            while not self._readable.poll(100):
                if until is not None and monotonic() > until:
                    raise reply_timeout(MySQLdb.OperationalError)(CR.SERVER_LOST, "the server has not answered in time")
            answer = self._answer(raw.read_query_result)
            answers.append(answer)
            executed = 1
            # The answers to the rest of a message have come with the first, or follow at once.
            while executed < self._in_message and answer.error is None:
                answer = self._answer(raw.next_result)
                answers.append(answer)
                executed += 1
            if executed == len(self._rest):
                return
            self._send(self._rest[executed:])

    def run(self, statement: str, until: float | None = None) -> tuple[Any, ...]:
        self.send(statement)
        (answer,) = self.receive(until)
        if answer.error is not None:
            raise answer.error
        return answer.rows

    def ping(self, until: float | None, timeout: float | None) -> None:
        try:
            self.run("do 0", until)
        except ReplyTimeout:
            raise TimeoutError(f"the server has not answered within {timeout:g} s") from None

    def quoted(self, text: str) -> str:
        return bytes(self.raw.string_literal(text.encode())).decode()

    def _answer(self, read: Callable[[], object]) -> CommandResult:
        raw = self.raw
        try:
            read()
            # Not asked for a result that there is not: the driver would make one first.
            result = raw.store_result() if raw.field_count() else None
        except MySQLdb.Error as error:
            if ends_session(error):
                raise
            return CommandResult(translate(error))  # type: ignore[arg-type]
        if result is not None:
            return CommandResult(None, tuple(result.fetch_row(0)))
        affected = raw.affected_rows()
        return CommandResult(affected=int(affected)) if affected else _OK

    def _break_off(self, error: BaseException) -> None:
        """Close the connection after an error: it is not known what was executed, or which answer is next."""
        self.raw.break_off()
        translate(error)


class SteppedMySQLdbSession(MySQLdbSession):
    """The session of a connection that recovery opens: its answers must come within the step of its thread."""

    __slots__ = ()

    def _send(self, statements: Sequence[str]) -> None:
        within_step()  # nothing is sent once the step is over
        super()._send(statements)

    def _receive(self, until: float | None) -> None:
        super()._receive(within_step(until))
