"""mysqlclient's connection (MySQLdb), with sending and receiving apart, by its send_query() and read_query_result().

The driver does not tell the server's status: whether a transaction is open is known by what was executed, and a write
without a transaction is not seen.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import MySQLdb
from MySQLdb.connections import Connection
from MySQLdb.constants import CR

from txpool.resources.mysql.session.forks import abandon_after_fork
from txpool.resources.mysql.session.protocol import ends_session
from txpool.resources.mysql.session.state import MySQLRawConnection
from txpool.resources.mysql.session.statement_text import LONG

if TYPE_CHECKING:
    from txpool.resources.mysql.mysqlclient.session import MySQLdbSession

_INTERRUPTED: Final = "a command was interrupted before its answer was read"


class MySQLdbRawConnection(MySQLRawConnection, Connection):  # type: ignore[misc]
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
        abandon_after_fork(self)

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
        return self.session.takes_several  # what follows in a message is not executed if the first is refused

    @property
    def database_name(self) -> str:
        """The database that the session began in; empty if it began in none."""
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
        if len(query) > self.longest:
            raise MySQLdb.OperationalError(*self.too_long(len(query)))
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
        """Execute a statement in one message with what goes ahead of it: if that is refused, it is not executed."""
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

        From then on the client's library would open another session in silence if this one is lost, and what follows
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
        """As mysqlclient's; also of one that is closed, if an error would take the place of what has closed it."""
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

    def abandon(self) -> None:
        """In a forked child: a socket that leads nowhere takes the place of the one to the parent's session."""
        self.dead = True
        nowhere, its_peer = socket.socketpair()
        its_peer.close()
        with nowhere, suppress(OSError):  # it is closed
            if self.open and self._is_own(self._descriptor):
                os.dup2(nowhere.fileno(), self._descriptor, inheritable=False)

    def _is_own(self, descriptor: int) -> bool:
        """Whether the descriptor leads to this connection's socket."""
        return os.path.samestat(os.fstat(descriptor), self._socket)

    @contextmanager
    def within(self, until: float | None) -> Iterator[None]:
        """Nothing: the driver's own reads wait as its read_timeout says."""
        yield

    def get_autocommit(self) -> bool:
        return not self.dead and bool(super().get_autocommit())
