"""What is known of one session with a server, whichever driver it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.characteristics import UNSPECIFIED

if TYPE_CHECKING:
    from txpool.xid import Xid


class SessionState:
    """The attributes that a raw connection has beyond its driver's own."""

    #: Whether the server is MariaDB, and not MySQL.
    is_mariadb = True
    #: The server's identity; empty where it is not known.
    identity = ""
    #: The number that the client was greeted with: the session's on the server, where no pooler is in between.
    session_number = 0
    #: Which server it leads to.
    node = ""
    #: The server's session is the greeted one.
    direct = True
    #: The token that its process has added to the server's; empty where it has none.
    generation = ""
    #: Empty: the server does not tell who has prepared a branch.
    role = ""
    #: The identity of the table of marks that was last read over it.
    marks_identity = ""
    #: When the row was written, the session's sql_mode let no value be cut to its column's length.
    strict = True
    #: Its branch's name, which XA START has sent, or will before the first statement.
    xid: Xid | None = None
    #: XA START was sent, and the branch has not ended.
    started = False
    #: The local transaction was begun by txpool, which has set a savepoint at its beginning.
    begun = False
    #: A statement may have changed the session: a reset restores it.
    changed = False
    #: A table without transactions was written in the open transaction: no rollback undoes that.
    unrollable = False
    #: Why the server has rolled the open transaction back by itself; empty where it has not.
    rolled_back = ""
    #: A statement of the open transaction has waited too long for a lock: by its settings, the server rolls all back.
    timed_out = False
    #: The local transaction that was begun is gone, and nobody has seen its end: a part of it may be committed.
    ended_unseen = False
    #: How its next transactions begin.
    characteristics = UNSPECIFIED
    #: The driver's own initial command.
    init_command: str | None = None
    #: The SQL that the session began with, and that a reset runs again.
    initial_sql = ""
    #: Bit flags that the server has sent with its last answer.
    server_status = 0

    def begins_anew(self) -> None:
        """Forget what was noted of the transaction before."""
        self.unrollable = self.timed_out = self.ended_unseen = False
        self.rolled_back = ""

    def left(self) -> None:
        """Note that what was begun on it has ended."""
        self.started = self.begun = False
