"""A local transaction in SQLite over sqlite3: its commit and rollback, and its mark."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from txpool.errors import ProgrammingError, translate
from txpool.resources.base import Refused
from txpool.resources.deadlines import Deadlines
from txpool.resources.dialect import IDENTITY, AbortRecorded, WrongTable

if TYPE_CHECKING:
    from txpool.resources.driver import Driver

# The least `pragma synchronous` of a commit that survives the power, by journal mode: FULL, else EXTRA.
_SYNCHRONOUS = {"wal": 2}
# BUSY, FULL, READONLY, INTERRUPT and CONSTRAINT come before SQLite's commit point; an I/O error may come after it.
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
    """SQLite over sqlite3."""

    parameter = "?"
    moment = "text not null default current_timestamp"

    def is_open(self, raw: sqlite3.Connection) -> bool:
        try:
            return raw.in_transaction
        except sqlite3.ProgrammingError:  # closed
            return True

    def watch_commands(self, raw: sqlite3.Connection) -> None:
        """Nothing: a transaction holds the write lock from its beginning, so it is no reader."""

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

    def qualified(self, raw: sqlite3.Connection, table: str) -> str | None:
        schema, _, name = table.rpartition(".")
        schema = schema or "main"
        query = f"select name from {schema}.sqlite_master where type = 'table' and lower(name) = lower(?)"  # noqa: S608
        return f"{schema}.{name}" if raw.execute(query, [name]).fetchone() else None

    def require_ours(self, raw: sqlite3.Connection, table: str, roles: Collection[str], *, writes: bool) -> None:
        """A file counts by its permissions."""

    def cursor_within(self, raw: sqlite3.Connection) -> sqlite3.Cursor | None:
        return sqlite3.Cursor(raw) if raw.in_transaction else None

    def place(self, raw: Any) -> str:
        return ""

    def mark(
        self,
        raw: Any,
        table: str,
        row: dict[str, str],
        delete: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
        cursor = sqlite3.Cursor(raw)
        if not raw.in_transaction:
            raise Refused("the row was not written: the transaction has ended before it")
        (journal,) = cursor.execute("pragma journal_mode").fetchone()
        (level,) = cursor.execute("pragma synchronous").fetchone()
        if level < _SYNCHRONOUS.get(journal, 3):
            raise ProgrammingError(
                f"synchronous={level} with journal_mode={journal} does not survive a power failure, and a mark must: "
                "leave both pragmas alone. Nothing is committed"
            )
        names = ", ".join(row)
        unseen = bool(identity) and raw.marks != identity
        there = f" where exists (select 1 from {table} where xid = ? and action_uid = ?)" if unseen else ""  # noqa: S608
        values = [*row.values(), *((IDENTITY, identity) if unseen else ())]
        try:
            if cursor.execute(f"insert into {table} ({names}) select {_marks(row)}{there}", values).rowcount != 1:
                raise WrongTable
            raw.marks = identity
        except sqlite3.IntegrityError as met:
            raise AbortRecorded from met
        cursor.execute(f"delete from {table} where xid in ({_marks(delete)})", [*delete])  # noqa: S608
        return row["xid"], [*delete]

    def commit_row(self, raw: sqlite3.Connection, table: str, where: str, branches: str) -> None:
        try:
            # Without a transaction it would begin one of its own, and that would commit.
            if raw.in_transaction:
                sqlite3.Cursor(raw).execute(f"update {table} set branches = ? where xid = ?", [branches, where])  # noqa: S608
        except sqlite3.Error as error:
            translate(error)
            raise Refused(f"COMMIT was not sent: {error}") from error
        self.commit(raw)

    def begin(self, raw: sqlite3.Connection, lock_timeout: float, *, writes: bool) -> None:
        raw.isolation_level = None
        raw.execute(f"pragma busy_timeout = {int(lock_timeout * 1000)}")
        raw.execute("begin immediate" if writes else "begin")


def _primary(error: sqlite3.Error) -> int:
    """SQLite's primary result code, which is the low byte of the extended one."""
    return error.sqlite_errorcode & 0xFF if hasattr(error, "sqlite_errorcode") else -1


def _marks(values: Sequence[str] | dict[str, str]) -> str:
    return ", ".join("?" * len(values))
