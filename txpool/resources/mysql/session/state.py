"""What is known of one session with a server, whichever driver it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from txpool.errors import ProgrammingError
from txpool.resources.base import PrepareLocation
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.session.statement_text import (
    XA_REFUSED,
    changes_session,
    commands_branch,
    may_commit,
    text_of,
)
from txpool.sql.characteristics import UNSPECIFIED

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from txpool.resources.mysql.session.protocol import DriverSession
    from txpool.xid import Xid

_TOO_LONG: Final = 1153


class MySQLRawConnection:
    """A raw connection: its attributes beyond its driver's own.

    Each is set on the instance, and its class has none of that name: Python finds those faster.
    """

    if TYPE_CHECKING:  # what each driver's connection adds, and what both drivers have
        session: DriverSession
        autocommit_mode: bool | None
        cursorclass: type
        unread: int
        until: float | None  # of a decision log's connection: when to stop waiting

        @property
        def lost(self) -> bool: ...
        @property
        def in_transaction(self) -> bool: ...
        @property
        def reads_only(self) -> bool: ...
        @property
        def database_name(self) -> str: ...
        @property
        def has_results(self) -> bool: ...
        def close(self) -> None: ...
        def break_off(self) -> None: ...
        def hang_up(self) -> None: ...
        def within(self, until: float | None) -> AbstractContextManager[None]: ...
        def fileno(self) -> int: ...
        def thread_id(self) -> int: ...
        def get_server_info(self) -> str: ...
        def get_host_info(self) -> str: ...
        def get_autocommit(self) -> bool: ...

    def __init__(self, **options: Any) -> None:
        #: Whether the server is MariaDB, and not MySQL.
        self.is_mariadb = True
        #: The server's identity; empty if it is not known.
        self.identity = ""
        #: The number that the client was greeted with: the session's on the server, if no pooler is in between.
        self.session_number = 0
        #: Which server it leads to.
        self.node = ""
        #: The server's session is the greeted one.
        self.direct = True
        #: The token that its process has added to the server's; empty if it has none.
        self.generation = ""
        #: Empty: the server does not tell who has prepared a branch.
        self.role = ""
        #: Where its branches prepare; set once it is known who the server is.
        self.location = PrepareLocation("")
        #: The identity of the table of marks that was last read over it.
        self.marks_identity = ""
        #: When the row was written, the session's sql_mode let no value be cut to its column's length.
        self.strict = True
        #: Its branch's name, which XA START has sent, or will before the first statement.
        self.xid: Xid | None = None
        #: XA START was sent, and the branch has not ended.
        self.started = False
        #: XA START if it is not sent yet, and goes ahead of the next command, in its message.
        self.ahead = ""
        #: The local transaction was begun by txpool, which has set a savepoint at its beginning.
        self.begun = False
        #: A statement may have changed the session: a reset restores it.
        self.changed = False
        #: A table without transactions was written in the open transaction: no rollback undoes that.
        self.unrollable = False
        #: The statement that wrote there has raised that; the ones that follow do not.
        self.unrollable_told = False
        #: Why the server has rolled the open transaction back by itself; empty if it has not.
        self.rolled_back = ""
        #: A statement of the open transaction has waited too long for a lock: the server may roll all back.
        self.timed_out = False
        #: The local transaction that was begun is gone, and nobody has seen its end: a part of it may be committed.
        self.ended_unseen = False
        #: A statement of the local transaction may have committed it; it is not known, and once the session is lost
        #: nobody can ask.
        self.may_have_committed = False
        #: How its next transactions begin.
        self.characteristics = UNSPECIFIED
        #: The driver's own initial command.
        self.init_command: str | None = None
        #: The wait_timeout that the session began with, in seconds; 0 if it is not known.
        self.wait_timeout = 0
        #: How many bytes a statement may have: of a longer one the server ends the session, as in an outage.
        self.longest = 1 << 30
        #: The SQL that the session began with, and that a reset runs again.
        self.initial_sql = ""
        #: Bit flags that the server has sent with its last answer.
        self.server_status = 0
        super().__init__(**options)

    def note_statement(self, sql: object) -> None:
        """Note what a statement of the program's own may leave behind, by its text.

        ProgrammingError if it is an XA command inside a branch.
        """
        text = text_of(sql)
        if self.started and commands_branch(text):
            raise ProgrammingError(XA_REFUSED)
        if not self.changed and changes_session(text, escapes=self.escapes):
            self.changed = True
        if self.begun and not self.may_have_committed and may_commit(text):
            self.may_have_committed = True

    def too_long(self, size: int) -> tuple[int, str]:
        """What a driver's error says of a statement of so many bytes, before it is sent."""
        problem = f"the statement has {size:,} bytes, and the server's max_allowed_packet is {self.longest:,}"
        return _TOO_LONG, f"{problem}. Nothing was sent"

    @property
    def escapes(self) -> bool | None:
        """Whether a backslash in a literal is no character of its own in this session; None if that is not known."""
        return None

    def begins_anew(self) -> None:
        """Forget what was noted of the transaction before."""
        self.unrollable = self.unrollable_told = False
        self.timed_out = self.ended_unseen = self.may_have_committed = False
        self.rolled_back = ""

    @property
    def may_send_ahead(self) -> bool:
        """Whether `ahead` may go in one message with a statement.

        If the server refuses it, nothing stays of the statement in a table with transactions. It raises the server's
        error, and the connection is closed.
        """
        raise NotImplementedError

    def run_ahead(self) -> None:
        """Execute by itself what goes ahead. If it is refused, the connection is closed: nothing may follow it."""
        self.session.run("do 0")

    @property
    def hold_command(self) -> str:
        """The command between END and PREPARE, which lets the server end a session that is not heard of any more."""
        return xa.ended_after(xa.HOLD_SECONDS) if self.wait_timeout and not self.changed else xa.HOLD

    @property
    def release_hold_command(self) -> str:
        """The command that undoes `hold_command`; without one it changes nothing."""
        return xa.ended_after(self.wait_timeout) if self.wait_timeout and not self.changed else xa.RELEASE_HOLD

    def left(self) -> None:
        """Note that what was begun on it has ended."""
        self.started = self.begun = False
