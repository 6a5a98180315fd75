"""A local transaction in SQLite over sqlite3: its commit and rollback."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from txpool.errors import translate
from txpool.resources.base import Refused
from txpool.resources.deadlines import Deadlines

if TYPE_CHECKING:
    from txpool.resources.driver import Driver

# SQLite raises these before its commit point: nothing is committed. An I/O error may come after it.
_DEFINITE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_CONSTRAINT,
    }
)


class SQLiteDialect:
    """Local transactions of SQLite over sqlite3."""

    def in_transaction(self, raw: sqlite3.Connection) -> bool:
        try:
            return raw.in_transaction
        except sqlite3.ProgrammingError:  # closed
            return True

    def watch_commands(self, raw: sqlite3.Connection) -> None:
        """Nothing: a transaction holds the write lock from its beginning, and counts as a writer."""

    def note_write(self, raw: sqlite3.Connection) -> None:
        """Nothing, for the same reason."""

    def read_only_check(
        self, datasource: str, driver: Driver, raw: sqlite3.Connection, deadlines: Deadlines, *, committing: bool
    ) -> None:
        return None

    def commit(self, raw: sqlite3.Connection) -> None:
        try:
            if not raw.in_transaction:
                raise Refused("COMMIT was not sent: the transaction has ended before it")
            raw.commit()
        except sqlite3.Error as error:
            translate(error)
            if isinstance(error, sqlite3.ProgrammingError):
                raise Refused(f"COMMIT was not sent: {error}") from error
            if _primary(error) in _DEFINITE:
                raise Refused(f"SQLite refused to commit: {error}") from error
            raise

    def rollback(self, driver: Driver, raw: sqlite3.Connection, until: float | None) -> None:
        try:
            raw.rollback()
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                raw.close()


def _primary(error: sqlite3.Error) -> int:
    """SQLite's primary result code, which is the low byte of the extended one."""
    return error.sqlite_errorcode & 0xFF if hasattr(error, "sqlite_errorcode") else -1
