"""The session of PyMySQL's connection: txpool's own commands, several in one message, and their answers."""

from __future__ import annotations

import select
import ssl
from time import monotonic
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import CR

from txpool.errors import translate
from txpool.resources.deadlines import reply_timeout
from txpool.resources.mysql.session.protocol import CommandResult

if TYPE_CHECKING:
    from txpool.resources.mysql.pymysql.connection import PyMySQLRawConnection


class PyMySQLSession:
    """As `Session`: all commands of one `send` travel together, and each is answered by itself."""

    __slots__ = ("_sent", "_unasked", "raw")

    def __init__(self, raw: PyMySQLRawConnection) -> None:
        self.raw = raw
        #: The last message was sent: no interrupt came before that. Else nobody knows what will be answered.
        self._sent = False
        #: Tells what the server says unasked: only that it has ended the session. TLS has messages of its own.
        self._unasked = _watching(raw, 0 if isinstance(raw._sock, ssl.SSLSocket) else select.POLLIN)

    def is_alive(self) -> bool:
        raw = self.raw
        if raw._sock is None or raw.unread:
            return False
        watching = _watching(raw, 0) if raw.has_results else self._unasked  # a result may still be coming
        return not watching.poll(0)

    def send(self, *statements: str) -> None:
        self._sent = False
        self.raw.send_all(statements)
        self._sent = True

    def receive(self, until: float | None = None) -> list[CommandResult]:
        raw = self.raw
        if raw._sock is None or not (raw.unread and self._sent):
            raise pymysql.OperationalError(CR.CR_SERVER_LOST, "the answer was lost in an interrupt")
        former = raw._read_timeout
        try:
            if until is not None:
                raw._read_timeout = max(until - monotonic(), 0.001)
            return raw.receive_all()
        except pymysql.MySQLError as error:
            raw.break_off()
            if isinstance(error.__context__, TimeoutError):
                late = reply_timeout(pymysql.OperationalError)
                raise late(CR.CR_SERVER_LOST, "the server has not answered in time") from None
            translate(error)
            raise
        except BaseException:
            raw.break_off()
            raise
        finally:
            if until is not None:
                raw._read_timeout = former

    def run(self, statement: str, until: float | None = None) -> tuple[Any, ...]:
        self.send(statement)
        (answer,) = self.receive(until)
        if answer.error is not None:
            raise answer.error
        return answer.rows

    def ping(self, until: float | None, timeout: float | None) -> None:
        try:
            with self.raw.within(until):
                self.raw.ping(reconnect=False)
        except pymysql.OperationalError as error:
            if isinstance(error.__context__, TimeoutError):
                raise TimeoutError(f"the server has not answered within {timeout:g} s") from None
            raise

    def quoted(self, text: str) -> str:
        return str(self.raw.escape(text))


def _watching(raw: PyMySQLRawConnection, events: int) -> select.poll:
    watching = select.poll()
    watching.register(raw.fileno(), events | select.POLLRDHUP)
    return watching
