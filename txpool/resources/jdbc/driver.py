"""The driver of a datasource over JDBC."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from txpool.config.secrets import without_secrets
from txpool.errors import (
    ConfigurationError,
    InternalError,
    OperationalError,
    translated,
)
from txpool.resources.base import PrepareLocation
from txpool.resources.deadlines import in_step, within_step_timeout
from txpool.resources.driver.marks import Marks
from txpool.resources.jdbc.databases import DATABASES, OTHER
from txpool.resources.jdbc.databases.database import DatabaseIdentity, JdbcDatabase
from txpool.resources.jdbc.dbapi import module
from txpool.resources.jdbc.dbapi.errors import Error, call
from txpool.resources.jdbc.dialect import JdbcDialect
from txpool.resources.jdbc.jvm.source import JavaSource, class_name
from txpool.resources.jdbc.logins import noted_login
from txpool.resources.jdbc.session import COMMITTING, ROLLING_BACK, XaConnection, changes_session
from txpool.sql.characteristics import UNSPECIFIED, Characteristics

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.resources.driver.dialect import Dialect
    from txpool.xid import Xid

#: java.sql.Connection's numbers of isolation levels.
ISOLATION: Final = {"read-uncommitted": 1, "read-committed": 2, "repeatable-read": 4, "serializable": 8}
_IDENTIFIED: Final = ("xa", "cmr")
_SECOND_TIMEOUT: Final = 5.0


#: By the branch's name: connections that have prepared, of a database in which closing one would lose the branch. They
#: stay until it has ended, which another process may do: then they would still hold its locks.
_kept: dict[str, XaConnection] = {}


class JdbcDriver:
    """A database over JDBC. Thread-safe; a raw connection has one user at a time."""

    module: Any = module
    dialect: Dialect = JdbcDialect()

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self._settings = settings
        self._recovery = recovery
        self._source = JavaSource(settings, recovery=recovery)
        #: Recovery begins as it must.
        self._characteristics = UNSPECIFIED if recovery else settings.characteristics
        self._generation = ""
        self._database: JdbcDatabase | None = None
        self.roles = tuple(filter(None, (settings.user, settings.recovery_user, *settings.prepared_owners)))

    @property
    def marks(self) -> Marks | None:
        """Known once a connection was opened; until then by the class, or the url."""
        database = self._database or _guessed(self._settings)
        return database.marks

    def connect(self, timeout: float | None = None) -> XaConnection:
        timeout = within_step_timeout(timeout)
        with translated():
            try:
                return without_secrets(
                    lambda: self._connect(None if timeout is None else monotonic() + timeout),
                    f"datasource {self._settings.name}",
                    self._settings.secrets,
                )
            except Error as error:
                error.at_connect = True
                raise

    def _connect(self, until: float | None) -> XaConnection:
        raw = self._opened(None if until is None else max(until - monotonic(), 1.0))
        try:
            raw.open_second_session = self._open_second_session
            raw.database = self._database = DATABASES.get(raw.product, OTHER)
            if in_step() and until is not None and raw.database.has_network_timeout:
                raw.set_network_timeout(max(until - monotonic(), 1.0))
            raw.logs_in_as_itself = not (self._recovery and self._settings.recovery_user)
            raw.autocommit = True
            self._identify(raw)
            settings = self._settings
            raw.location = PrepareLocation(settings.name, raw.identity, raw.role, settings.file, noted_login(settings))
            if _kept and raw.database.keeps_open and self._settings.mode == "xa":
                _close_ended(raw)
            self._begin_session(raw)
        except BaseException:
            raw.drop()
            raise
        return raw

    def _open_second_session(self) -> XaConnection:
        """Another session, for what the first cannot do."""
        with translated():
            return without_secrets(
                lambda: self._opened(_SECOND_TIMEOUT), f"datasource {self._settings.name}", self._settings.secrets
            )

    def _opened(self, timeout: float | None = None) -> XaConnection:
        xa_connection, java = self._source.open(timeout)
        raw = XaConnection(java)
        raw.settings = self._settings
        raw.xa_connection = xa_connection
        return raw

    def _identify(self, raw: XaConnection) -> None:
        """Ask who the server is. ConfigurationError if no branch can be trusted to it."""
        settings, database = self._settings, raw.database
        if settings.mode == "xa":
            if raw.xa_connection is None:
                raise ConfigurationError(f"datasource {settings.name}: mode = xa needs an XADataSource")
            raw.xa = call(raw.xa_connection.getXAResource)
            why_not = database.why_not_xa(raw)
            if why_not:
                raise ConfigurationError(f"datasource {settings.name}: {why_not}")
        if settings.mode == "cmr" and database.marks is None:
            raise ConfigurationError(
                f"datasource {settings.name}: no table of marks is proven in {raw.product}: write mode = xa, "
                "last-resource or local"
            )
        server: DatabaseIdentity = database.identify(raw, writes=settings.mode in _IDENTIFIED)
        raw.identity, raw.generation, raw.role = server.identity, server.generation, server.role
        if raw.identity and not raw.generation and settings.mode == "xa" and not self._recovery:
            if not (self._generation and database.has_generation(raw, self._generation)):
                self._generation = database.add_generation(raw)
            raw.generation = self._generation
        if settings.mode == "xa" and not self._recovery and not (raw.identity and raw.generation):
            database.warn_unproven(raw)

    def _begin_session(self, raw: XaConnection) -> None:
        begin_as(raw, self._characteristics)
        raw.autocommit = False
        raw.left()

    def execute(self, raw: XaConnection, statement: str, parameters: Sequence[Any] = ()) -> Any:
        if statement.startswith("savepoint "):
            statement += raw.database.savepoint_end
        return raw.run(statement, parameters)

    def is_open(self, raw: XaConnection) -> bool:
        return not raw.lost

    def is_clean(self, raw: XaConnection) -> bool:
        return not (
            raw.lost
            or raw.started
            or raw.begun
            or raw.in_transaction
            or raw.changed
            or raw.autocommit
            or raw.holds_branch
            or raw.xid is not None
            or raw.characteristics is not self._characteristics
            or self._settings.pool_reset == "always"
        )

    def reset(self, raw: XaConnection, timeout: float | None = None) -> None:
        if raw.lost or raw.started or raw.holds_branch:
            raise OperationalError(f"datasource {self._settings.name}: a connection was left inside a branch")
        if raw.changed:  # JDBC has no command that restores a session
            raise OperationalError(f"datasource {self._settings.name}: a statement has changed its session")
        with translated():
            raw.reset()
            begin_as(raw, self._characteristics)
            raw.autocommit = False
        raw.xid = None
        raw.left()

    def ping(self, raw: XaConnection, timeout: float | None = None) -> None:
        with translated():
            raw.ping(timeout)

    def close(self, raw: XaConnection) -> None:
        if raw.holds_branch and raw.xid is not None:
            _kept[raw.xid.joined] = raw
        else:
            raw.drop()

    def cancel(self, raw: XaConnection, timeout: float | None = None) -> None:
        with suppress(Exception):  # the thread that waits for the statement gets its error
            raw.cancel()

    def hang_up(self, raw: XaConnection) -> None:
        with suppress(Exception):
            raw.abort()

    def begin(self, raw: XaConnection, label: str = "") -> bool:
        """Begin the branch or the local transaction, if neither is begun. JDBC has no name for a session."""
        if raw.started or raw.begun:
            return True
        with translated():
            raw.failed = None
            raw.just_failed = raw.ended_unseen = raw.may_have_committed = False
            if raw.xid is None:
                if self._settings.mode == "xa":  # else the statement would be outside the transaction
                    raise InternalError(f"datasource {self._settings.name}: its branch has no name")
                raw.begun = True
                raw.database.begin(raw)
                return True
            raw.started = True  # first, so that an interrupt leaves a connection that is not clean
            raw.database.start(raw, raw.xid)
        return True

    def reached_server(self, error: BaseException) -> bool:
        return bool(getattr(error, "java_class", ""))

    def note_failure(self, raw: XaConnection, raw_cursor: Any, error: BaseException) -> None:
        if getattr(error, "java_class", ""):
            raw.just_failed = True

    def ended_by(self, raw: XaConnection, raw_cursor: Any) -> str | None:
        """As `Driver.ended_by`, by the statement's text: what a procedure does inside is found out at the end."""
        statement = str(getattr(raw_cursor, "statement", "") or "")
        word, following = raw.words_of(statement)
        if not raw.may_have_committed and raw.database.may_commit(raw, statement):
            raw.may_have_committed = True
        refused, raw.just_failed = raw.just_failed, False
        if changes_session(word, following) or raw.database.leaves_something(statement):
            raw.changed = True
        if refused:
            return None
        if word in ROLLING_BACK:
            return None if " to " in raw.database.sql.first_words(statement) else "rollback"
        if word in COMMITTING or (word == "end" and raw.product == "postgresql"):
            return "commit"
        if word == "set" and raw.product == "h2" and not _is_same(raw):
            return "commit"
        return None


def close_kept(xid: Xid) -> None:
    """Close the connection that was kept for a branch: that has ended."""
    raw = _kept.pop(xid.joined, None)
    if raw is not None:
        raw.drop()


def _close_ended(raw: XaConnection) -> None:
    """Close the connections that were kept for branches of this database that have ended."""
    listed = raw.database.names(raw)
    for name, kept in list(_kept.items()):
        if kept.identity == raw.identity and name not in listed and _kept.pop(name, None) is not None:
            kept.drop()


def _is_same(raw: XaConnection) -> bool:
    """Whether the transaction is the one that was begun, asked of the database."""
    try:
        raw.database.require_begun(raw)
    except Exception:
        return False
    return True


def begin_as(raw: XaConnection, characteristics: Characteristics) -> None:
    """Let the next local transactions of a raw connection begin so."""
    if characteristics.isolation is not None:
        raw.isolation = ISOLATION[characteristics.isolation]
    if characteristics.read_only is not None:
        raw.read_only = characteristics.read_only
    raw.characteristics = characteristics


def _guessed(settings: DataSourceSettings) -> JdbcDatabase:
    """The database as far as the settings show it."""
    shown = f"{settings.url} {class_name(settings) or ''} {settings.jdbc_driver_class or ''}".lower()
    for product, database in DATABASES.items():
        if product.rpartition(" ")[2] in shown:
            return database
    return OTHER
