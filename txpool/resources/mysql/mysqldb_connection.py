"""mysqlclient's connection (MySQLdb), with sending and receiving apart, by its send_query() and read_query_result().

It cannot send a command before the one before is answered. So of several commands, those that take no time are answered
first, and the one that waits for the disk is on its way when `send` returns. Where the session takes several statements
in one message, as it does by default (multi_statements), they share one round trip. And the driver does not tell the
server's status:
whether a transaction is open is known by what was executed, and a write without a transaction is not seen.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Final
from weakref import ref

import MySQLdb
from MySQLdb.connections import Connection
from MySQLdb.constants import CR

from txpool.errors import translate
from txpool.resources.mysql.session import LONG
from txpool.resources.mysql.state import SessionState
from txpool.resources.mysql.wire import Answer, after_what_went_ahead, ends_session

#: The commands that wait for the disk.
_SLOW: Final = ("xa prepare", "xa commit", "xa rollback", "commit")
_OK: Final = Answer()
_INTERRUPTED: Final = "a command was interrupted before its answer was read"


class ReplyTimeout(MySQLdb.OperationalError):  # type: ignore[misc]
    """No answer came in time: whether the server executes the command is not known."""


class MySQLdbConnection(SessionState, Connection):  # type: ignore[misc]
    """A physical connection, and the state of its session."""

    session: MySQLdbSession

    # The driver's own compare each name with "closed", which it computes, and so keep Python from remembering where an
    # attribute is: each use of one would take several times the instructions.
    __getattribute__ = object.__getattribute__
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    @property
    def closed(self) -> bool:
        """Whether it is closed, as the driver's."""
        return not self.open

    def __init__(self, **options: Any) -> None:
        #: How many answers were not read.
        self.unread = 0
        #: Something was executed since the last COMMIT or ROLLBACK.
        self.touched = False
        #: It was closed, or the server has ended the session.
        self.dead = False
        #: As PyMySQL's; the server's own status says the same.
        self.autocommit_mode: bool | None = None
        super().__init__(**options)
        #: The character set that the session began with.
        self.first_character_set = str(self.character_set_name())
        self.changed = False
        # While it executes, the driver (from 2.3 on) does not tell it to another thread, nor to a forked child. Of a
        # lost session the driver closes it, and the number may be another file's then: see `_is_own`.
        self._descriptor = int(self.fileno())
        self._socket = os.fstat(self._descriptor)
        key = id(self)
        _opened[key] = ref(self, lambda _: _opened.pop(key, None))

    @property
    def lost(self) -> bool:
        """Whether it was closed, or its answers are out of step."""
        return self.dead or self.unread > 0

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction may be open."""
        return self.touched

    @property
    def reads_only(self) -> bool:
        """Whether the open transaction was begun READ ONLY."""
        return (self.started or self.begun) and self.characteristics.read_only is True

    @property
    def may_send_ahead(self) -> bool:
        return self.session.takes_several  # what follows in a message is not executed where the first is refused

    @property
    def database_name(self) -> str:
        """The database that the session began in; empty where it began in none."""
        return str(self.database or "")

    @property
    def has_results(self) -> bool:
        """False: the driver refuses a command while a result is not read to its end."""
        return False

    def left(self) -> None:
        super().left()
        self.touched = False

    def query(self, query: Any) -> None:
        if self.unread:
            self.break_off()
            raise MySQLdb.OperationalError(CR.COMMANDS_OUT_OF_SYNC, _INTERRUPTED)
        self.note_statement(query)
        self.touched = True
        try:
            if self.ahead:
                self._query_after_ahead(query)
            else:
                super().query(query)
        except MySQLdb.Error as error:
            self._note_end(error)
            raise

    def _query_after_ahead(self, query: Any) -> None:
        """Execute a statement in one message with what goes ahead of it: where that is refused, it is not executed."""
        if not isinstance(query, bytes) or len(query) >= LONG:
            self.run_ahead()
            super().query(query)
            return
        self.unread = 1
        try:
            super().query(self.ahead.encode() + b"; " + query)
        except MySQLdb.Error:
            self.break_off()
            raise
        self.ahead = ""
        try:
            nothing = self.next_result() < 0
        except MySQLdb.Error:
            self.unread = 0
            raise
        self.unread = 0
        if nothing:  # the statement is empty, and alone an error
            super().query(query)

    def ping(self, reconnect: object = None) -> None:
        """As mysqlclient's, but for `reconnect`.

        From then on the client's library would open another session in silence where this one is lost, and what follows
        would commit by itself there.
        """
        super().ping()

    def select_db(self, db: Any) -> None:
        self.changed = True
        super().select_db(db)

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        self.changed = True
        super().set_character_set(charset, collation)

    def change_user(self, *args: Any) -> None:
        self.changed = True
        super().change_user(*args)

    def set_server_option(self, option: int) -> Any:
        self.changed = True
        self.session.takes_several = False  # perhaps
        return super().set_server_option(option)

    def commit(self) -> None:
        with self._noting_its_end():
            super().commit()
        self.touched = False

    def rollback(self) -> None:
        with self._noting_its_end():
            super().rollback()
        self.touched = False

    @contextmanager
    def _noting_its_end(self) -> Iterator[None]:
        try:
            yield
        except MySQLdb.Error as error:
            self._note_end(error)
            raise

    def _note_end(self, error: Exception) -> None:
        self.dead = self.dead or ends_session(error)

    def close(self) -> None:
        """As mysqlclient's; also of one that is closed, where an error would take the place of what has closed it."""
        if self.open:
            super().close()

    def break_off(self) -> None:
        """Close it without a word to the server, which then rolls back what is not prepared."""
        self.dead = True
        if not self.open:
            return
        self.hang_up()
        with suppress(MySQLdb.Error):
            self.close()

    def hang_up(self) -> None:
        """Let no more pass: a thread that waits for an answer gets an error."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as same:
            if self._is_own(same.fileno()):
                same.shutdown(socket.SHUT_RDWR)

    def let_go(self, nobody: int) -> None:
        """In a forked child: `nobody` takes the place of the socket that leads to the parent's session."""
        self.dead = True
        with suppress(OSError):  # it is closed
            if self.open and self._is_own(self._descriptor):
                os.dup2(nobody, self._descriptor, inheritable=False)

    def _is_own(self, descriptor: int) -> bool:
        """Whether the descriptor leads to this connection's socket."""
        return os.path.samestat(os.fstat(descriptor), self._socket)

    @contextmanager
    def within(self, until: float | None) -> Iterator[None]:
        """Nothing: the driver's own reads wait as its read_timeout says."""
        yield

    def get_autocommit(self) -> bool:
        return not self.dead and bool(super().get_autocommit())


class MySQLdbSession:
    """As `Session`: of several commands, the first that waits for the disk is sent without waiting."""

    __slots__ = ("_answers", "_hung_up", "_in_message", "_readable", "_rest", "_went_ahead", "raw", "takes_several")

    def __init__(self, raw: MySQLdbConnection, *, takes_several: bool) -> None:
        self.raw = raw
        #: Whether a message may have several statements; what follows one that fails is not executed.
        self.takes_several = takes_several
        self._hung_up, self._readable = select.poll(), select.poll()
        self._hung_up.register(raw.fileno(), select.POLLRDHUP)
        self._readable.register(raw.fileno(), select.POLLIN)
        self._answers: list[Answer] = []
        #: The first of the answers is to what went ahead.
        self._went_ahead = False
        #: What is not answered yet, and how many of these statements are in the message that was sent.
        self._rest: Sequence[str] = ()
        self._in_message = 0

    def is_alive(self) -> bool:
        return not self.raw.lost and not self._hung_up.poll(0)

    def send(self, *statements: str) -> None:
        raw = self.raw
        if raw.lost:
            raw.break_off()
            raise MySQLdb.OperationalError(CR.SERVER_GONE_ERROR, "the connection was lost before")
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

    def receive(self, until: float | None = None) -> list[Answer]:
        raw = self.raw
        if raw.dead or not raw.unread:
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
                    raise ReplyTimeout(CR.SERVER_LOST, "the server has not answered in time")
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

    def _answer(self, read: Callable[[], object]) -> Answer:
        raw = self.raw
        try:
            read()
            # Not asked for a result that there is not: the driver would make one first.
            result = raw.store_result() if raw.field_count() else None
        except MySQLdb.Error as error:
            if ends_session(error):
                raise
            return Answer(translate(error))  # type: ignore[arg-type]
        if result is not None:
            return Answer(None, tuple(result.fetch_row(0)))
        affected = raw.affected_rows()
        return Answer(affected=int(affected)) if affected else _OK

    def _break_off(self, error: BaseException) -> None:
        """Close the connection after an error: it is not known what was executed, or which answer is next."""
        self.raw.break_off()
        translate(error)


# By the id of each connection of this process. Each step is one operation of a dict: there is no lock, which a fork
# could leave locked.
_opened: dict[int, ref[MySQLdbConnection]] = {}


def _after_fork_in_child() -> None:
    """The connections are the parent's: what the child collects would say goodbye to the parent's server."""
    inherited = [raw for each in list(_opened.values()) if (raw := each()) is not None]
    _opened.clear()
    if inherited:
        nobody, nobodys_peer = socket.socketpair()
        nobodys_peer.close()
        with nobody:
            for raw in inherited:
                raw.let_go(nobody.fileno())


os.register_at_fork(after_in_child=_after_fork_in_child)
