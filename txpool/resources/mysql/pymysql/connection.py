"""PyMySQL's connection, with sending and receiving apart.

A command may be interrupted between any two bytecodes, after it was sent and before its answer was read. The next
command would take that answer for its own. So each connection counts the answers that are not read yet, and is closed
if a command would meet one.
"""

from __future__ import annotations

import os
import socket
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Final

import pymysql
from pymysql.connections import MySQLResult
from pymysql.constants import CLIENT, COMMAND, CR, SERVER_STATUS
from pymysql.protocol import EOFPacketWrapper

from txpool.errors import translate
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.pymysql.reading import OK, WHOLE_PACKET
from txpool.resources.mysql.pymysql.rows import RowsConnection
from txpool.resources.mysql.pymysql.session import PyMySQLSession
from txpool.resources.mysql.session.forks import abandon_after_fork
from txpool.resources.mysql.session.protocol import CommandResult, after_what_went_ahead
from txpool.resources.mysql.session.state import MySQLRawConnection
from txpool.resources.mysql.session.statement_text import LONG, commits_nothing

_COM_RESET_CONNECTION: Final = 0x1F
_STATE_CHANGED: Final = 0x4000
_READ_ONLY: Final = 0x2000
#: In an answer, behind its text: the type of the transaction's state, and the lengths of the value.
_TRANSACTION_STATE: Final = b"\x05\x09\x08"
_WRITES_WITHOUT_TRANSACTION: Final = ord("w")
_INTERRUPTED: Final = "a command was interrupted before its answer was read"
_AUTOCOMMIT: Final = SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT
#: The head of a command's packet, whose number is 0, and the command's kind.
_COMMAND: Final = struct.Struct("<IB")
_OK: Final = CommandResult()


class _Result(MySQLResult):  # type: ignore[misc]
    """A result that hands on the server's status at its end: an answer with rows has it nowhere else."""

    unbuffered_active = False  # for the finaliser of one that an interrupt has kept from being made

    def take(self, ok: OK) -> None:
        """Take what an OK says, in place of PyMySQL's own reading."""
        self.affected_rows, self.insert_id, self.server_status, self.warning_count, self.message = ok
        self.has_next = 0
        self.connection = None

    def _check_packet_is_eof(self, packet: Any) -> bool:
        if not packet.is_eof_packet():
            return False
        end = EOFPacketWrapper(packet)
        self.warning_count = end.warning_count
        self.has_next = end.has_next
        if self.connection is not None:
            self.connection.server_status = end.server_status
        return True


class PyMySQLRawConnection(MySQLRawConnection, RowsConnection):
    """A physical connection, and the state of its session."""

    session: PyMySQLSession
    _sock: Any
    _rfile: Any
    _result: Any

    def __init__(self, **options: Any) -> None:
        #: How many answers were not read to their end.
        self.unread = 0
        #: The first of these is of what went ahead of the command.
        self.went_ahead = False
        options["client_flag"] = options.get("client_flag", 0) | CLIENT.SESSION_TRACK
        super().__init__(**options)
        #: The character set and the collation that the session began with.
        self._first_character_set = self.charset, self.collation
        self.changed = False
        abandon_after_fork(self)

    def connect(self, sock: Any = None) -> None:
        again = "session" in vars(self)
        if again:
            self._force_close()
            self.unread, self.went_ahead, self.ahead = 0, False, ""
        super().connect(sock)
        if again:  # by the program: another session, over another socket
            self.session, self.session_number = PyMySQLSession(self), int(self.thread_id())

    @property
    def lost(self) -> bool:
        """Whether it was closed, or its answers are out of step."""
        return self._sock is None or self.unread > 0

    @property
    def in_transaction(self) -> bool:
        """Whether the server has said that a transaction is open."""
        return bool(self.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    @property
    def reads_only(self) -> bool:
        """Whether the server has said that the open transaction was begun READ ONLY."""
        return bool(self.server_status & _READ_ONLY)

    @property
    def escapes(self) -> bool:
        return not self.server_status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES

    @property
    def may_send_ahead(self) -> bool:
        # What is executed all the same is in a local transaction, which does not commit by itself.
        return not (self.server_status & _AUTOCOMMIT or self.client_flag & CLIENT.MULTI_STATEMENTS)

    @property
    def database_name(self) -> str:
        """The database that the session began in; empty if it began in none."""
        name = self.db
        return name.decode() if isinstance(name, bytes) else name or ""

    @property
    def has_results(self) -> bool:
        """Whether the last statement's results were not read to their end."""
        result = self._result
        return result is not None and bool(result.unbuffered_active or result.has_next)

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        self.note_statement(sql)
        return super().query(sql, unbuffered)

    def _execute_command(self, command: int, sql: Any) -> None:
        if len(sql) > self.longest:
            raise pymysql.OperationalError(*self.too_long(len(sql)))
        self.finish_results()
        if self.ahead:
            if command == COMMAND.COM_QUERY and len(sql) < LONG and commits_nothing(sql):
                self._send_with_ahead(sql)
                return
            self.run_ahead()
        self.unread = 1
        super()._execute_command(command, sql)

    def _send_with_ahead(self, sql: bytes) -> None:
        """Send a statement in one message with what goes ahead of it."""
        message = _packet(self.ahead) + _COMMAND.pack(len(sql) + 1, COMMAND.COM_QUERY) + sql
        self.unread, self.went_ahead = 2, True
        self._write_bytes(message)
        self.ahead = ""
        self._next_seq_id = 1

    def _read_ahead(self) -> None:
        """Read the answer to what went ahead of a statement.

        If it is an error, the statement was executed all the same, in a local transaction. The connection is closed,
        so that the server rolls it back.
        """
        if not self.read_oks(1):
            try:
                self._read_packet()
            except pymysql.MySQLError:
                self.break_off()
                raise
            self._next_seq_id = 1
        self.went_ahead = False
        self.unread -= 1

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        if self.went_ahead:
            self._read_ahead()
        self.unread = max(self.unread, 1)
        self._result = None
        result = _Result(self)
        try:
            # If several results answer one command, the numbers of their packets go on.
            oks = self.read_oks(1) if self._next_seq_id == 1 else ()
            if oks:
                result.take(*oks)
            elif unbuffered:
                result.init_unbuffered_query()
            else:
                result.read()
        except pymysql.MySQLError:  # the server's answer; or the connection is lost, and was closed
            self.unread -= 1
            # An error says nothing of the transaction, and the statement may have begun one.
            self.server_status |= SERVER_STATUS.SERVER_STATUS_IN_TRANS
            raise
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
            if result.server_status & _STATE_CHANGED and result.message:
                self._note_transaction_state(result)
        self.unread -= 1
        return result.affected_rows

    def _note_transaction_state(self, result: Any) -> None:
        before, found, after = result.message.rpartition(_TRANSACTION_STATE)
        if found and len(after) == 8:
            if _WRITES_WITHOUT_TRANSACTION in after:
                self.unrollable = True
            result.message = before[:-1]

    def _read_ok_packet(self) -> Any:
        try:
            answer = super()._read_ok_packet()
        except pymysql.MySQLError:
            self.unread = 0
            raise
        self.unread = 0
        return answer

    def select_db(self, db: str) -> None:
        self.changed = True
        super().select_db(db)

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        self.changed = True
        super().set_character_set(charset, collation)
        self.unread = 0

    def finish_results(self) -> None:
        """Read what is left of the last result; close the connection if an answer was left unread."""
        if self.unread:
            self._force_close()
            raise pymysql.OperationalError(CR.CR_COMMANDS_OUT_OF_SYNC, _INTERRUPTED)
        result: Any = self._result
        if result is None or not (result.unbuffered_active or result.has_next):
            return
        self.unread = 1
        if result.unbuffered_active:
            warnings.warn("Previous unbuffered result was left incomplete", stacklevel=4)
            result._finish_unbuffered_query()
        self.unread = 0
        while self._result is not None and self._result.has_next:
            self.next_result()
        self._result = None

    def close(self) -> None:
        """As PyMySQL's; also of one that is closed, if an error here would take the place of what has closed it."""
        if not self._closed:
            super().close()

    def break_off(self) -> None:
        """Close it without a word to the server, which then rolls back what is not prepared."""
        self._closed = True
        self._force_close()

    def hang_up(self) -> None:
        """Let no more pass: a thread that waits for an answer gets an error."""
        with suppress(OSError, AttributeError), socket.socket(fileno=os.dup(self._sock.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)  # AttributeError: it is closed

    def abandon(self) -> None:
        """In a forked child: close its copies of what leads to the parent's session, and send nothing."""
        _abandon(self._result)
        self._result = self._sock = self._rfile = None
        self._closed = True

    def _force_close(self) -> None:
        super()._force_close()
        _abandon(getattr(self, "_result", None))

    def reset_session(self) -> None:
        """Restore the session as it was when the connection was opened, but for its database and autocommit mode."""
        self._execute_command(_COM_RESET_CONNECTION, b"")
        self._forget_statements()
        self._read_ok_packet()
        self.set_character_set(*self._first_character_set)

    def fileno(self) -> int:
        return int(self._sock.fileno())

    # -- for PyMySQLSession --------------------------------------------------------------------------------------

    def send_all(self, statements: tuple[str, ...]) -> None:
        if self._sock is None:
            raise pymysql.OperationalError(CR.CR_SERVER_GONE_ERROR, "the connection was lost before")
        self.finish_results()
        self._result = None
        self.went_ahead = bool(self.ahead)
        if self.ahead:
            statements = (self.ahead, *statements)
        message = b"".join([_PACKETS.get(statement) or _packet(statement) for statement in statements])
        self.unread = len(statements)
        self._write_bytes(message)
        self.ahead = ""
        self._next_seq_id = 1

    def receive_all(self) -> list[CommandResult]:
        """The answers to all that was sent, in order."""
        answers: list[CommandResult] = []
        went_ahead, self.went_ahead = self.went_ahead, False
        while self.unread:
            oks = self.read_oks(self.unread)
            for affected, _, self.server_status, _, _ in oks:
                answers.append(CommandResult(affected=affected) if affected else _OK)
                self.unread -= 1
            if not oks:
                answers.append(self._receive_one())
        return after_what_went_ahead(self, answers) if went_ahead else answers

    def _receive_one(self) -> CommandResult:
        """The next answer, as PyMySQL reads it."""
        self._next_seq_id = 1  # the number of an answer's first packet
        try:
            self._read_query_result()
        except pymysql.MySQLError as error:
            if self._sock is None:
                raise
            return CommandResult(translate(error))  # type: ignore[arg-type]
        result: Any = self._result
        return CommandResult(None, result.rows or (), result.affected_rows or 0)

    @contextmanager
    def within(self, until: float | None) -> Iterator[None]:
        """Within the block, reads wait until then, by the monotonic clock; None is for ever."""
        former: float | None = self._read_timeout
        self._read_timeout = None if until is None else max(until - monotonic(), 0.001)
        try:
            yield
        finally:
            self._read_timeout = former

    def set_read_timeout(self, seconds: float | None) -> None:
        """Let each read wait so long; None is for ever."""
        self._read_timeout = seconds


def _packet(statement: str) -> bytes:
    text = statement.encode()
    length = len(text) + 1
    if length >= WHOLE_PACKET:
        raise pymysql.OperationalError(CR.CR_NET_PACKET_TOO_LARGE, "a statement of txpool's own is too long")
    return _COMMAND.pack(length, COMMAND.COM_QUERY) + text


#: Those of every transaction.
_PACKETS: Final = {
    statement: _packet(statement) for statement in (xa.ended_after(xa.HOLD_SECONDS), xa.HOLD, xa.RELEASE_HOLD)
}


def _abandon(result: Any) -> None:
    """Let nobody read the rest of a result: its finaliser would."""
    if result is not None:
        result.unbuffered_active, result.connection = False, None
