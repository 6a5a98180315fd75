"""A local transaction in SQLite over sqlite3: its commit and rollback."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from txpool.errors import TransactionRolledBack, described, translate
from txpool.resources.base import BranchOutcome, ReadOnlyCheck, Refused
from txpool.resources.deadlines import Deadlines
from txpool.resources.driver.dialect import Dialect

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver
    from txpool.resources.sqlite.driver import SQLiteRawConnection

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

#: What tells the user's own COMMIT from a ROLLBACK: a note in the temporary database, which rolls back with the rest.
TRANSACTION_OPEN = "pragma temp.user_version = 1"
_NO_TRANSACTION_OPEN = "pragma temp.user_version = 0"


class SQLiteDialect(Dialect):
    """Local transactions of SQLite over sqlite3."""

    def in_transaction(self, raw: sqlite3.Connection) -> bool:
        try:
            return raw.in_transaction
        except sqlite3.ProgrammingError:  # closed
            return True

    def read_only_check(
        self, datasource: str, driver: Driver, raw: SQLiteRawConnection, deadlines: Deadlines, *, committing: bool
    ) -> ReadOnlyCheck | None:
        """Of a transaction that was begun read-only; any other has the write lock, and counts as a writer."""
        return SQLiteReadOnlyCheck(datasource, raw) if raw.begins_read_only else None

    def commit(self, raw: SQLiteRawConnection) -> None:
        try:
            if not raw.in_transaction:
                raise Refused("COMMIT was not sent: the transaction has ended before it")
            if not raw.begins_read_only:
                _take_note_back(raw)
            raw.commit()
        except sqlite3.Error as error:
            translate(error)
            if isinstance(error, sqlite3.ProgrammingError):
                raise Refused(f"COMMIT was not sent: {described(error)}") from error
            if _primary(error) in _DEFINITE:
                raise Refused(f"SQLite refused to commit: {described(error)}") from error
            raise

    def rollback(self, driver: Driver, raw: sqlite3.Connection, until: float | None) -> BranchOutcome:
        try:
            raw.rollback()
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                raw.close()
        return BranchOutcome.ROLLED_BACK


def _take_note_back(raw: SQLiteRawConnection) -> None:
    try:
        raw.execute(_NO_TRANSACTION_OPEN)
    except sqlite3.Error:  # by the user's own query_only, for one: the note goes with the session
        raw.changed = True


class SQLiteReadOnlyCheck:
    """A transaction that was begun read-only: SQLite itself has refused whatever would write."""

    def __init__(self, datasource: str, raw: sqlite3.Connection) -> None:
        self.datasource = datasource
        self._raw = raw

    def start_asking(self) -> None:
        """Nothing: there is nobody to ask."""

    def await_answer(self) -> bool:
        return True

    def require_alive(self) -> None:
        if not SQLiteDialect().in_transaction(self._raw):
            raise TransactionRolledBack(
                f"datasource {self.datasource} voted to roll back: the transaction has ended before its end",
                datasource=self.datasource,
            )

    def start_commit(self) -> None:
        """Nothing: `await_commit` does the work."""

    def await_commit(self) -> None:
        self._raw.commit()

    def drop(self) -> None:
        self._raw.close()


def _primary(error: sqlite3.Error) -> int:
    """SQLite's primary result code, which is the low byte of the extended one."""
    return error.sqlite_errorcode & 0xFF if hasattr(error, "sqlite_errorcode") else -1
