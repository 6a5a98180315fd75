"""The driver sqlite3, of the standard library."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import ConfigurationError, translated
from txpool.resources.dialect import Dialect
from txpool.resources.marks import Marks
from txpool.resources.sqlite.dialect import SQLiteDialect
from txpool.resources.sqlite.marks import SQLiteMarks

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

_LEVEL: Final = "DEFERRED"
# sqlite3's own arguments, and the types of the text that a file gives for them.
_KINDS = {"timeout": float, "cached_statements": int, "detect_types": int}
_transaction_numbers = itertools.count(1)


class SQLiteRawConnection(sqlite3.Connection):
    """A physical connection, and the number of its transaction."""

    #: The identity of the table of marks that was last read over it.
    marks_identity = ""
    #: `begin` writes it into the temporary database: afterwards it is there only if the transaction has committed.
    transaction_number = 0


class SQLiteDriver:
    """SQLite. Thread-safe; a raw connection has one user at a time, and may change threads."""

    module: Any = sqlite3
    dialect: Dialect = SQLiteDialect()
    marks: Marks = SQLiteMarks()
    roles: tuple[str, ...] = ()

    def __init__(self, settings: DataSourceSettings) -> None:
        self._settings = settings
        self._path = settings.url.removeprefix("sqlite:///")

    def connect(self, timeout: float | None = None) -> SQLiteRawConnection:
        with translated():
            raw = SQLiteRawConnection(self._path, check_same_thread=False, isolation_level=_LEVEL, **self._options())
            try:
                self._make_durable(raw)
            except BaseException:
                raw.close()
                raise
        return raw

    def _options(self) -> dict[str, Any]:
        options = self._settings.connect_options()
        for name, value in options.items():
            if name not in _KINDS:
                raise self._option_error(name, f"is not one of {', '.join(_KINDS)}: leave it out")
            with contextlib.suppress(ValueError):
                options[name] = _KINDS[name](value)
                continue
            # The value is not shown: a reference may be a secret.
            raise self._option_error(name, "is no number: write one")
        return options

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
                and raw.isolation_level == _LEVEL
                and raw.row_factory is None
                and raw.text_factory is str
            )
        except sqlite3.ProgrammingError:  # closed
            return False

    def reset(self, raw: SQLiteRawConnection, timeout: float | None = None) -> None:
        with translated():
            raw.rollback()
            raw.isolation_level = _LEVEL
            raw.row_factory = None
            raw.text_factory = str
            self._make_durable(raw)

    def ping(self, raw: SQLiteRawConnection, timeout: float | None = None) -> None:
        with translated():
            raw.execute("select 1")

    def close(self, raw: SQLiteRawConnection) -> None:
        raw.close()

    def cancel(self, raw: SQLiteRawConnection, timeout: float | None = None) -> None:
        with contextlib.suppress(sqlite3.Error):
            raw.interrupt()

    def begin(self, raw: SQLiteRawConnection, label: str = "") -> None:
        """Begin with the write lock: a transaction that reads first can then always write."""
        if raw.in_transaction:
            return
        with translated():
            raw.execute("begin immediate")
            raw.transaction_number = next(_transaction_numbers) & 0x7FFFFFFF
            raw.execute(f"pragma temp.user_version = {raw.transaction_number}")

    def reached_server(self, error: BaseException) -> bool:
        """False: there is no server, and the connection itself tells whether a transaction is open."""
        return False

    def note_failure(self, raw: SQLiteRawConnection, raw_cursor: sqlite3.Cursor | None, error: BaseException) -> None:
        """Does nothing: a statement that fails is undone alone, and the transaction can commit."""

    def ended_by(self, raw: SQLiteRawConnection, raw_cursor: sqlite3.Cursor) -> str | None:
        if raw.in_transaction:
            return None
        (number,) = sqlite3.Cursor(raw).execute("pragma temp.user_version").fetchone()
        return "commit" if number == raw.transaction_number else "rollback"

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
