"""The driver sqlite3, of the standard library."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import ConfigurationError, OperationalError, translated
from txpool.resources.driver.dialect import Dialect
from txpool.resources.driver.marks import Marks
from txpool.resources.sqlite.dialect import TRANSACTION_OPEN, SQLiteDialect
from txpool.resources.sqlite.marks import SQLiteMarks
from txpool.sql.characteristics import UNSPECIFIED, Characteristics

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

_LEVEL: Final = "DEFERRED"
# sqlite3's own arguments, and the types of the text that a file gives for them.
_KINDS = {"timeout": float, "cached_statements": int, "detect_types": int}


class SQLiteRawConnection(sqlite3.Connection):
    """A physical connection, and what is known of its session."""

    #: The identity of the table of marks that was last read over it.
    marks_identity = ""
    #: The session may have been changed: only opening the database anew restores it.
    changed = False
    #: Its transactions are read-only: query_only is on.
    begins_read_only = False


def begin_as(raw: SQLiteRawConnection, characteristics: Characteristics) -> None:
    """Let the next transactions of a raw connection be read-only, or not. They are always serializable."""
    read_only = bool(characteristics.read_only)
    if raw.begins_read_only is not read_only:
        raw.begins_read_only = read_only  # first, so that an interrupt leaves a connection that is not clean
        raw.execute(f"pragma query_only = {int(read_only)}")


def _reading(raw: sqlite3.Connection) -> sqlite3.Connection:
    """The connection, once it has opened the file: connect() itself does not."""
    sqlite3.Cursor(raw).execute("pragma schema_version").fetchone()
    return raw


class SQLiteDriver:
    """SQLite. Thread-safe; a raw connection has one user at a time, and may change threads."""

    module: Any = sqlite3
    dialect: Dialect = SQLiteDialect()
    marks: Marks = SQLiteMarks()
    roles: tuple[str, ...] = ()

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self._settings = settings
        self._always_reset = settings.pool_reset == "always"
        self._characteristics = UNSPECIFIED if recovery else settings.characteristics
        self._path = settings.url.removeprefix("sqlite:///")
        #: Recovery makes no file: an empty one would hide that the right one is missing.
        self._creates = not recovery

    def connect(self, timeout: float | None = None) -> SQLiteRawConnection:
        if not self._creates and not os.path.isfile(self._path):
            raise OperationalError(
                f"datasource {self._settings.name}: {self._path} is no file, and recovery makes none: correct url, "
                "mount the folder or restore the file. Nothing was decided"
            )
        with translated():
            raw = SQLiteRawConnection(self._path, **self._options())
            try:
                self._begin_session(raw)
            except BaseException:
                raw.close()
                raise
        return raw

    def _begin_session(self, raw: SQLiteRawConnection) -> None:
        self._make_durable(raw)
        begin_as(raw, self._characteristics)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = self._settings.connect_options()
        for name, value in options.items():
            if name not in _KINDS:
                raise self._option_error(name, f"is not one of {', '.join(_KINDS)}: leave it out")
            with contextlib.suppress(ValueError):
                options[name] = _KINDS[name](value)
                continue
            # The value is not shown: a reference may be a secret.
            raise self._option_error(name, "is no number: write one")
        return {**options, "check_same_thread": False, "isolation_level": _LEVEL}

    def execute(self, raw: SQLiteRawConnection, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return sqlite3.Cursor(raw).execute(statement, parameters)

    def is_open(self, raw: SQLiteRawConnection) -> bool:
        try:
            return raw.total_changes >= 0
        except sqlite3.ProgrammingError:  # closed
            return False

    def is_clean(self, raw: SQLiteRawConnection) -> bool:
        try:
            return (
                not raw.in_transaction
                and not raw.changed
                and raw.begins_read_only is bool(self._characteristics.read_only)
                and raw.isolation_level == _LEVEL
                and raw.row_factory is None
                and raw.text_factory is str
            )
        except sqlite3.ProgrammingError:  # closed
            return False

    def reset(self, raw: SQLiteRawConnection, timeout: float | None = None) -> None:
        with translated():
            if raw.changed or self._always_reset:
                raw.rollback()  # once closed, it would hold its locks for as long as one of its cursors lives
                self._open_anew(raw)
            else:
                if hasattr(raw, "autocommit"):
                    raw.autocommit = sqlite3.LEGACY_TRANSACTION_CONTROL  # type: ignore[attr-defined]
                raw.rollback()
                raw.isolation_level = _LEVEL
                raw.row_factory = None
                raw.text_factory = str
            self._begin_session(raw)

    def _open_anew(self, raw: SQLiteRawConnection) -> None:
        """Restore the whole session: temporary objects, pragmas, attached databases, functions, hooks and limits.

        SQLite has no command for that, and opening a file takes some 25 microseconds. In WAL mode another connection
        stays open meanwhile: the last one to close would write the log back, and remove it.
        """
        with contextlib.ExitStack() as meanwhile:
            in_wal_mode = os.path.exists(f"{self._path}-wal")
            if in_wal_mode:
                meanwhile.enter_context(contextlib.closing(_reading(sqlite3.connect(self._path))))
            raw.close()
            vars(raw).clear()
            SQLiteRawConnection.__init__(raw, self._path, **self._options())
            if in_wal_mode:
                _reading(raw)

    def ping(self, raw: SQLiteRawConnection, timeout: float | None = None) -> None:
        with translated():
            raw.execute("select 1")

    def close(self, raw: SQLiteRawConnection) -> None:
        raw.close()

    def cancel(self, raw: SQLiteRawConnection, timeout: float | None = None) -> None:
        with contextlib.suppress(sqlite3.Error):
            raw.interrupt()

    def hang_up(self, raw: SQLiteRawConnection) -> None:
        self.cancel(raw)

    def begin(self, raw: SQLiteRawConnection, label: str = "") -> bool:
        """Begin with the write lock: a transaction that reads first can then always write. One that is read-only needs
        neither the lock nor the note of its end, since nothing of it can be committed.
        """
        if raw.in_transaction:
            return True
        with translated():
            if raw.begins_read_only:
                raw.execute("begin")
                return True
            raw.execute("begin immediate")
            # Part of the transaction: afterwards it is there only if the user's own COMMIT has ended that.
            try:
                raw.execute(TRANSACTION_OPEN)
            except BaseException:  # by the user's own authorizer, for one
                self.dialect.rollback(self, raw, None)
                raise
        return True

    def reached_server(self, error: BaseException) -> bool:
        """False: there is no server, and the connection itself tells whether a transaction is open."""
        return False

    def note_failure(self, raw: SQLiteRawConnection, raw_cursor: sqlite3.Cursor | None, error: BaseException) -> None:
        """Does nothing: a statement that fails is undone alone, and the transaction can commit."""

    def ended_by(self, raw: SQLiteRawConnection, raw_cursor: sqlite3.Cursor) -> str | None:
        if raw.in_transaction:
            return None
        try:
            (committed,) = sqlite3.Cursor(raw).execute("pragma temp.user_version").fetchone()
        except sqlite3.Error:  # by the user's own authorizer, for one: then what may be committed counts as that
            committed = True
        raw.changed = raw.changed or bool(committed)
        return "commit" if committed else "rollback"

    def _make_durable(self, raw: SQLiteRawConnection) -> None:
        """In mode cmr, set the level at which a commit survives a power failure: FULL in WAL mode, else EXTRA."""
        if self._settings.mode != "cmr":
            return
        cursor = sqlite3.Cursor(raw)
        (journal,) = cursor.execute("pragma journal_mode").fetchone()
        if journal in ("memory", "off"):
            raise ConfigurationError(
                f"datasource {self._settings.name}: journal_mode={journal} does not survive a crash, and a marked "
                "datasource must: use WAL or DELETE"
            )
        cursor.execute(f"pragma synchronous = {'full' if journal == 'wal' else 'extra'}")

    def _option_error(self, option: str, problem: str) -> ConfigurationError:
        return ConfigurationError(f"datasource {self._settings.name}: driver.{option} {problem}")
