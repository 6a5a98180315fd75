"""A table of marks in SQLite over sqlite3."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from txpool.errors import ProgrammingError, described, translate
from txpool.resources.base import Refused
from txpool.resources.driver.marks import IDENTITY, AbortRecorded, Marks, WrongTable
from txpool.resources.sqlite.dialect import SQLiteDialect

if TYPE_CHECKING:
    from txpool.resources.sqlite.driver import SQLiteRawConnection

# The least `pragma synchronous` with which a commit survives a power failure, by journal mode: FULL, else EXTRA.
_SYNCHRONOUS = {"wal": 2}
_DIALECT = SQLiteDialect()


class SQLiteMarks(Marks):
    """The table of marks in SQLite; a row's key for `commit_row` is its gtrid."""

    parameter = "?"
    made_at_type = "text not null default current_timestamp"

    def qualified_name(self, raw: sqlite3.Connection, table: str) -> str | None:
        schema, _, name = table.rpartition(".")
        schema = schema or "main"
        query = f"select name from {schema}.sqlite_master where type = 'table' and lower(name) = lower(?)"
        return f"{schema}.{name}" if raw.execute(query, [name]).fetchone() else None

    def require_ours(self, raw: sqlite3.Connection, table: str, roles: Collection[str], *, writes: bool) -> None:
        """Nothing: SQLite has no roles. The file's permissions say who may write it."""

    def is_sole_writer(self, raw: sqlite3.Connection) -> bool:
        return raw.in_transaction

    def database_identity(self, raw: SQLiteRawConnection) -> str:
        return ""

    def mark(
        self,
        raw: SQLiteRawConnection,
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
        raw.text_factory = str  # the user's own, which the end of the transaction restores, could make anything of it
        (journal,) = cursor.execute("pragma journal_mode").fetchone()
        (level,) = cursor.execute("pragma synchronous").fetchone()
        if level < _SYNCHRONOUS.get(journal, 3):
            raise ProgrammingError(
                f"synchronous={level} with journal_mode={journal} does not survive a power failure, and a mark must: "
                "leave both pragmas alone. Nothing is committed"
            )
        names = ", ".join(row)
        unchecked = bool(identity) and raw.marks_identity != identity
        condition = f" where exists (select 1 from {table} where xid = ? and action_uid = ?)" if unchecked else ""
        values = [*row.values(), *((IDENTITY, identity) if unchecked else ())]
        try:
            if (
                cursor.execute(f"insert into {table} ({names}) select {_placeholders(row)}{condition}", values).rowcount
                != 1
            ):
                raise WrongTable
            raw.marks_identity = identity
        except sqlite3.IntegrityError as error:
            raise AbortRecorded from error
        cursor.execute(f"delete from {table} where xid in ({_placeholders(delete)})", [*delete])
        return row["xid"], [*delete]

    def commit_row(self, raw: SQLiteRawConnection, table: str, row: str, branches: str) -> None:
        try:
            # Without an open transaction sqlite3 would begin one, and the commit below would not be refused.
            if raw.in_transaction:
                sqlite3.Cursor(raw).execute(f"update {table} set branches = ? where xid = ?", [branches, row])
        except sqlite3.Error as error:
            translate(error)
            raise Refused(f"COMMIT was not sent: {described(error)}") from error
        _DIALECT.commit(raw)

    def begin(self, raw: sqlite3.Connection, lock_timeout: float, *, writes: bool) -> None:
        raw.isolation_level = None
        if writes:
            raw.execute("pragma query_only = off")  # marks are written whatever the datasource's own work may do
        raw.execute(f"pragma busy_timeout = {int(lock_timeout * 1000)}")
        raw.execute("begin immediate" if writes else "begin")


def _placeholders(values: Sequence[str] | dict[str, str]) -> str:
    return ", ".join("?" * len(values))
