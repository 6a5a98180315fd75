"""The driver of a datasource in MariaDB or MySQL: what is the same over PyMySQL and over mysqlclient."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Final

from txpool import loops
from txpool.config.secrets import without_secrets
from txpool.dbapi.types import add_driver
from txpool.errors import ConfigurationError, InternalError, NotSupportedError, OperationalError, translate, translated
from txpool.resources.base import PrepareLocation
from txpool.resources.deadlines import within_step, within_step_timeout
from txpool.resources.driver.dialect import Dialect
from txpool.resources.driver.marks import Marks
from txpool.resources.marked.branch_rows import rows_of
from txpool.resources.mysql import type_objects
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.dialect import MySQLDialect, begin, beginning_as
from txpool.resources.mysql.session.address import arguments, noted_login, user_of
from txpool.resources.mysql.session.pooler import DO, refused
from txpool.resources.mysql.session.proof import warn_unproven
from txpool.resources.mysql.session.protocol import code_of
from txpool.resources.mysql.session.server import add_generation, ask, assign_identity, has_generation
from txpool.resources.mysql.session.statement_text import text_of
from txpool.resources.mysql.tables.marks import MySQLMarks
from txpool.sql.characteristics import UNSPECIFIED
from txpool.sql.dialects import MYSQL

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.resources.mysql.session.state import MySQLRawConnection

_CANCEL_TIMEOUT: Final = 5.0
#: Seconds that a connect has at least, however short its timeout.
_LEAST_CONNECT_TIMEOUT: Final = 1.0
# What the server tells of its transactions in its answers: whether a table without transactions was written.
_TRACK: Final = "set session session_track_transaction_info = 'STATE'"
#: The modes in which the server's identity is kept with decisions.
_IDENTIFIED: Final = ("xa", "cmr")

add_driver(type_objects)


class MySQLDriver(ABC):
    """MariaDB and MySQL. Thread-safe; a raw connection has one user at a time."""

    module: ClassVar[Any]
    #: The class of the driver's ordinary cursors.
    cursor_class: ClassVar[Any]
    dialect: Dialect = MySQLDialect()
    marks: Marks = MySQLMarks()

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self._settings = settings
        self._recovery = recovery
        #: The table of its branches' rows, and what deletes them; None if its branches write none.
        self.rows, self.rows_queue = rows_of(settings, self)
        #: Over how many connections it ends branches that other processes have prepared, at most.
        self.phase_two_connections = settings.xa_phase_two_connections
        self._always_reset = settings.pool_reset == "always"
        #: Recovery begins as it must.
        self._characteristics = UNSPECIFIED if recovery else settings.characteristics
        #: This process's token of the server's generation; empty before the first connection, and if it is refused.
        self._generation = ""
        self.roles = tuple(filter(None, (user_of(settings), settings.recovery_user)))

    @abstractmethod
    def _reset_session(self, raw: Any) -> None:
        """Let the server forget all that the session has set and made, and choose its first database again."""

    @staticmethod
    @abstractmethod
    def open_raw(options: dict[str, Any], timeout: float | None) -> MySQLRawConnection:
        """A raw connection in autocommit mode, with its `session`; `timeout` is in seconds. The driver's own errors."""

    def connect(self, timeout: float | None = None) -> MySQLRawConnection:
        if loops.used and (call := loops.current()) is not None:  # names are looked up, and passwords hashed
            raw: MySQLRawConnection = call.in_thread(self.connect, timeout)
            return raw
        timeout = within_step_timeout(timeout)
        until = None if timeout is None else monotonic() + max(timeout, _LEAST_CONNECT_TIMEOUT)
        with translated():
            raw = self.connect_unchecked(until)
            try:
                self._identify(raw, until)
                self._begin_session(raw, until)
            except BaseException:
                raw.break_off()
                raise
        return raw

    def connect_unchecked(self, until: float | None = None) -> MySQLRawConnection:
        """A raw connection in autocommit mode, also to a server that no branch can be trusted to; it creates nothing.

        `until` is when to stop waiting, by the monotonic clock.
        """
        until = within_step(until)
        options = arguments(self._settings, recovery=self._recovery)
        raw = without_secrets(
            lambda: self.open_raw(options, None if until is None else until - monotonic()),
            f"datasource {self._settings.name}",
            self._settings.secrets,
        )
        raw.session_number = int(raw.thread_id())
        raw.is_mariadb = "mariadb" in str(raw.get_server_info()).lower()
        return raw

    def _identify(self, raw: MySQLRawConnection, until: float | None) -> None:
        """Ask who the server is. ConfigurationError if no branch can be trusted to it."""
        # MySQL's greeting does not tell what the server's default is, and mysqlclient believes it.
        server = ask(raw.session, "set autocommit = 1", until=until)
        raw.direct, raw.node, raw.wait_timeout = server.direct, server.node, server.wait_timeout
        raw.longest = server.longest
        if not raw.direct and self._settings.mode != "local":
            raise refused(self._settings.name)
        if not raw.direct and self._characteristics.specified:
            do = f"leave transaction.isolation and transaction.read-only out of its file; or {DO}"
            raise refused(self._settings.name, do)
        if self._settings.mode == "xa":
            why_not = server.why_not_xa()
            if why_not:
                raise ConfigurationError(f"datasource {self._settings.name}: {why_not}")
        named = server.identity or self._settings.mode not in _IDENTIFIED
        if not named and assign_identity(raw.session, until):
            server = ask(raw.session, until=until)
        raw.identity = server.identity
        file, login = self._settings.file, noted_login(self._settings)
        raw.location = PrepareLocation(self._settings.name, raw.identity, raw.role, file, login)
        if raw.identity and self._settings.mode == "xa" and not self._recovery:
            if not has_generation(raw.session, self._generation, until):
                self._generation = add_generation(raw.session, until)
            raw.generation = self._generation
        proven = raw.generation or self.rows_queue is not None
        if self._settings.mode == "xa" and not self._recovery and not proven:
            warn_unproven(self._settings, raw.session, identified=bool(raw.identity))

    def _begin_session(self, raw: MySQLRawConnection, until: float | None) -> None:
        # Last: a session that is read-only could not add an identity or a generation.
        raw.session.send(*self._session_commands())
        for answer in raw.session.receive(until):
            if answer.error is not None:
                raise answer.error
        raw.autocommit_mode = False
        raw.characteristics = self._characteristics

    def _session_commands(self) -> tuple[str, ...]:
        begin = (each.replace("set", "set session", 1) for each in beginning_as(self._characteristics))
        return _TRACK, *begin, "set autocommit = 0"

    def execute(self, raw: MySQLRawConnection, statement: str, parameters: Sequence[Any] = ()) -> Any:
        cursor = self.cursor_class(raw)
        cursor.execute(statement, parameters or None)
        return cursor

    def is_open(self, raw: MySQLRawConnection) -> bool:
        return not raw.lost

    def is_clean(self, raw: MySQLRawConnection) -> bool:
        return not (
            raw.lost
            or raw.changed
            or raw.started
            or raw.ahead
            or raw.begun
            or raw.in_transaction
            or raw.get_autocommit()
            or raw.characteristics is not self._characteristics
            or raw.cursorclass is not self.cursor_class
            or raw.has_results
        )

    def reset(self, raw: MySQLRawConnection, timeout: float | None = None) -> None:
        until = None if timeout is None else monotonic() + timeout
        if raw.lost:
            raise OperationalError(f"datasource {self._settings.name}: a connection was left while it executed")
        with raw.within(until), translated():
            if raw.started and raw.xid is not None:
                raw.session.send(xa.named("end", raw.xid), xa.named("rollback", raw.xid))
                raw.session.receive(until)
            raw.session.run("rollback", until)
            if raw.changed or self._always_reset:
                self._restore(raw, until)
            elif raw.get_autocommit():
                raw.session.run("set autocommit = 0", until)
        raw.autocommit_mode = False
        raw.cursorclass = self.cursor_class
        raw.characteristics = self._characteristics
        raw.left()
        raw.begins_anew()
        raw.xid = None

    def _restore(self, raw: MySQLRawConnection, until: float | None) -> None:
        self._reset_session(raw)
        raw.wait_timeout = 0  # the server's may be another one now
        for command in self._session_commands():
            raw.session.run(command, until)
        for own in (raw.init_command, raw.initial_sql):
            if own:
                self._run_initial(raw, own, until)
        raw.changed = False

    def start_session(self, raw: MySQLRawConnection, statement: str, timeout: float | None) -> None:
        """As `SessionStarter.start_session`."""
        raw.wait_timeout = 0  # the statement may set it
        with translated():
            self._run_initial(raw, statement, None if timeout is None else monotonic() + timeout)
        raw.initial_sql = statement

    def _run_initial(self, raw: MySQLRawConnection, statement: str, until: float | None) -> None:
        raw.session.run(statement, until)
        raw.session.run("commit", until)

    def ping(self, raw: MySQLRawConnection, timeout: float | None = None) -> None:
        with translated():
            raw.session.ping(None if timeout is None else monotonic() + timeout, timeout)

    def close(self, raw: MySQLRawConnection) -> None:
        raw.break_off()

    def cancel(self, raw: MySQLRawConnection, timeout: float | None = None) -> None:
        # The thread that waits for the statement gets its error.
        if not raw.direct:  # the number is a pooler's, and on the server maybe a stranger's
            raw.hang_up()
            return
        with contextlib.suppress(Exception), contextlib.closing(self.connect(timeout or _CANCEL_TIMEOUT)) as other:
            if other.node != raw.node:  # a balancer has led to another server, where the number is a stranger's
                raw.hang_up()
                return
            other.session.run(f"kill query {raw.session_number}", monotonic() + (timeout or _CANCEL_TIMEOUT))

    def hang_up(self, raw: MySQLRawConnection) -> None:
        raw.hang_up()

    def begin(self, raw: MySQLRawConnection, label: str = "") -> bool:
        """Begin the branch or the local transaction, if neither is begun. MariaDB has no name for a session."""
        if raw.started or raw.begun:
            return True
        try:
            self._begin(raw)
        except Exception as error:
            translate(error)
            raise
        return True

    def _begin(self, raw: MySQLRawConnection) -> None:
        if raw.xid is None:
            if self._settings.mode == "xa":  # else the statement would be outside the transaction
                raise InternalError(f"datasource {self._settings.name}: its branch has no name")
            if not raw.direct and raw.characteristics.specified:
                raise refused(self._settings.name, f"begin without isolation and read_only; or {DO}")
            begin(raw)
            return
        raw.begins_anew()
        session, start = raw.session, xa.named("start", raw.xid)
        if raw.may_send_ahead and not raw.characteristics.specified:
            raw.ahead = start  # first, or after an interrupt a statement could go without it
            raw.started = True
            return
        raw.started = True  # first, so that an interrupt leaves a connection that is not clean
        session.send(*beginning_as(raw.characteristics), start)
        *_, answer = session.receive()
        if answer.error is not None:
            raw.started = False
            raise answer.error

    def reached_server(self, error: BaseException) -> bool:
        return code_of(error) > 0

    def note_failure(self, raw: MySQLRawConnection, raw_cursor: Any, error: BaseException) -> None:
        if code_of(error) in xa.WHOLE_ROLLED_BACK:
            raw.rolled_back = raw.rolled_back or str(error)
        elif code_of(error) == xa.LOCK_TIMEOUT:
            raw.timed_out = True

    def ended_by(self, raw: MySQLRawConnection, raw_cursor: Any) -> str | None:
        """As `Driver.ended_by`. NotSupportedError if the statement has written what no rollback undoes.

        Once in a transaction: those that follow have done what they should, and whoever repeats them does it twice.
        """
        if raw.unrollable and not raw.unrollable_told:
            raw.unrollable_told = True
            raise NotSupportedError(
                f"datasource {self._settings.name}: a statement has written to a table whose engine has no "
                "transactions, as MyISAM: what it wrote there stays, and no rollback undoes it. "
                "ALTER TABLE … ENGINE = InnoDB"
            )
        if raw.started or not raw.begun or raw.lost or raw.rolled_back or raw.in_transaction:
            return None
        raw.begun = False
        statement = text_of(getattr(raw_cursor, "_executed", None) or "")
        return "rollback" if MYSQL.first_words(statement).startswith("rollback") else "commit"
