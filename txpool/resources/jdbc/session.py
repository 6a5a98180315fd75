"""The raw connections of a datasource over JDBC: the state of a session, and what a user may execute in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from txpool.errors import ProgrammingError, described
from txpool.resources.base import PrepareLocation, Refused
from txpool.resources.jdbc.dbapi.connection import JdbcConnection
from txpool.resources.jdbc.dbapi.cursor import JdbcCursor
from txpool.resources.jdbc.dbapi.errors import call
from txpool.resources.mysql.session.statement_text import XA_REFUSED
from txpool.sql.characteristics import UNSPECIFIED

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.resources.jdbc.databases.database import JdbcDatabase
    from txpool.xid import Xid

#: Statements that end a transaction in every database that has them.
COMMITTING: Final = frozenset({"commit", "begin", "start"})
ROLLING_BACK: Final = frozenset({"rollback", "abort"})
#: What they do in H2, which commits in silence if it executes one of these.
H2_COMMITTING: Final = frozenset(
    {"create", "drop", "alter", "truncate", "analyze", "comment", "grant", "revoke", "checkpoint", "shutdown", "backup"}
    | {"script", "runscript", "prepare"}
)
#: SQLState: the connection was lost, and whether the statement was completed is not known.
_COMPLETION_UNKNOWN: Final = "40003"


class XaCursor(JdbcCursor):
    """A user's cursor: it refuses what its database would commit in silence."""

    connection: XaConnection

    def execute(self, operation: str, parameters: Sequence[Any] | None = None) -> Self:
        self.connection.require_allowed(operation)
        return super().execute(operation, parameters)

    def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[Any]]) -> Self:
        self.connection.require_allowed(operation)
        return super().executemany(operation, seq_of_parameters)


class XaConnection(JdbcConnection):
    """A physical connection, and the state of its session."""

    cursor_class = XaCursor
    settings: DataSourceSettings
    #: What is known of its database.
    database: JdbcDatabase
    #: Its javax.sql.XAConnection and XAResource; None if it is a plain connection.
    xa_connection: Any = None
    xa: Any = None
    identity = ""
    generation = ""
    role = ""
    #: Whether the server is MariaDB, and the number that the client was greeted with: set by MySQLSession.
    is_mariadb: bool
    session_number: int | None
    #: What the log notes before a branch prepares over it.
    location: PrepareLocation
    #: Whether it has logged in as the datasource's own user.
    logs_in_as_itself = True
    #: The identity of the table of marks that was last read over it.
    marks_identity = ""
    #: Its branch's name, which START has, or will have before the first statement.
    xid: Xid | None = None
    java_xid: Any = None
    #: A branch was started and has not ended; its END was answered.
    started = False
    xa_ended = False
    #: A local transaction was begun by txpool.
    begun = False
    #: The statements with which each transaction begins, if it has to be known again.
    marker: tuple[str, ...] = ()
    #: What `JdbcDatabase.begin` has noted of it.
    begun_as = ""
    savepoint: Any = None
    #: The transaction that was begun is gone, and nobody has seen its end: a part of it may be committed.
    ended_unseen = False
    #: A statement may have committed a part of it; it is not known, and once the session is lost nobody can ask.
    may_have_committed = False
    #: The statement that was executed last has failed.
    just_failed = False
    #: It has prepared a branch that would be lost if it were closed.
    holds_branch = False
    holds = False
    accepts_silent_commits = False
    #: Several processes can have the database open.
    is_served = False
    #: Opens another session, and the one that was opened: it ends with this one.
    open_second_session: Callable[[], XaConnection]
    second_session: XaConnection | None = None
    #: A statement may have changed the session: `reset` cannot restore all, and the connection is replaced.
    changed = False
    characteristics = UNSPECIFIED

    def run(self, operation: str, parameters: Sequence[Any] = ()) -> JdbcCursor:
        """Execute a statement of txpool's own, which leaves `used` and `failed` as they are."""
        before = self.used, self.failed
        try:
            return JdbcCursor(self).execute(operation, parameters)
        finally:
            self.used, self.failed = before

    def words_of(self, statement: str) -> tuple[str, str]:
        """The first two words of a statement, in small letters; empty if it has none."""
        first, second, *_ = [*self.database.sql.first_words(statement).split(" ", 2), ""]
        return first, second

    def require_allowed(self, statement: Any) -> None:
        """ProgrammingError for a user's statement that would end the open transaction in silence. Nothing was done."""
        if self.started and self.database.commands_branch(str(statement)):
            raise ProgrammingError(XA_REFUSED)
        if self.product != "h2" or self.accepts_silent_commits or not (self.started or self.begun):
            return
        word = self.words_of(str(statement))[0]
        if word in H2_COMMITTING or word in COMMITTING:
            raise ProgrammingError(
                f"datasource {self.settings.name}: H2 would commit the transaction in silence if it executes "
                f"{word.upper()}, so it was not sent, and nothing was done. Execute it outside the transaction; or "
                "accept that what is done before it stays, by h2.accept = silent-commits"
            )

    def require_no_failure(self) -> None:
        """`Refused` if a statement has failed: what the database says after that is no yes."""
        if self.failed is not None and self.database.failures_doom:
            reason = " ".join(str(self.failed).split())
            raise Refused(f"a statement in it had failed, and its error was caught: {reason}") from self.failed

    def commit_durably(self) -> None:
        """COMMIT, and what makes it durable. Any error leaves it unknown, but those that say that it was refused."""
        try:
            self.commit()
        except Exception as error:
            if not self.lost and _is_refusal(error):
                raise Refused(f"the database refused to commit: {described(error)}") from error
            raise
        self.database.make_durable(self)
        self.left()

    def left(self) -> None:
        """Note that what was begun on it has ended."""
        self.started = self.begun = self.xa_ended = False
        self.in_transaction = False
        self.java_xid = self.savepoint = None
        self.begun_as = ""
        self.failed = None
        self.just_failed = False

    def drop(self) -> None:
        """Close it without waiting, and its XAConnection with it. What it has prepared stays, in most databases."""
        second_session, self.second_session = self.second_session, None
        if second_session is not None:
            second_session.drop()
        self.abort()
        opened, self.xa_connection = self.xa_connection, None
        if opened is not None:
            with suppress(Exception):
                call(opened.close)


def _is_refusal(error: BaseException) -> bool:
    # Integrity constraints that were deferred, and transactions that were rolled back in favour of others.
    state = str(getattr(error, "sqlstate", ""))
    return state.startswith(("23", "40")) and state != _COMPLETION_UNKNOWN


def changes_session(word: str, following: str) -> bool:
    """Whether a statement may leave something behind in its session, which JDBC cannot restore."""
    if word == "set":
        return following not in ("transaction", "local", "constraints")
    if word in ("create", "declare"):
        return following in ("temporary", "temp", "local", "global") or word == "declare"
    return word in ("call", "use", "lock", "do", "execute", "listen", "prepare", "exec")
