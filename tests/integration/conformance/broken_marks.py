"""Marks that misbehave, each in one way: SQLite's and PostgreSQL's own but for that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tests.integration.conformance.broken import Broken, SaysReader
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import (
    ReadOnlyCheck,
)
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.marks import Statement
from txpool.resources.postgresql.driver import PsycopgDriver
from txpool.resources.postgresql.tables.marks import PostgreSQLMarks
from txpool.resources.sqlite.dialect import SQLiteDialect
from txpool.resources.sqlite.driver import SQLiteDriver
from txpool.resources.sqlite.manager import SQLite
from txpool.resources.sqlite.marks import SQLiteMarks


class BrokenMarks(SQLite):
    """SQLite with other marks."""

    marks_class: ClassVar[type[SQLiteMarks]] = SQLiteMarks

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        driver = SQLiteDriver(settings, recovery=recovery)
        driver.marks = self.marks_class()
        return driver


class NeverCommits(BrokenMarks):
    """The row and the work with it are written, and the COMMIT is not sent."""

    class marks_class(SQLiteMarks):
        def commit_row(self, raw: Any, table: str, row: str, branches: str) -> None: ...


class PostgreSQLNeverCommits(Broken):
    class driver_class(PsycopgDriver):
        class Marks(PostgreSQLMarks):
            def commit_row(self, raw: Any, table: str, row: str, branches: str) -> None: ...

        marks = Marks()


class ReplacesRows(BrokenMarks):
    """A row takes the place of what has its key: of another row, and of a tombstone."""

    class marks_class(SQLiteMarks):
        def mark(self, raw: Any, table: str, row: dict[str, str], delete: Sequence[str], **rest: Any) -> Any:
            raw.execute(f"delete from {table} where xid = ?", [row["xid"]])
            return super().mark(raw, table, row, delete, **rest)


class ReplacingTombstones(BrokenMarks):
    """A tombstone takes the place of a row."""

    class marks_class(SQLiteMarks):
        def put_tombstone(self, table: str, row: dict[str, str]) -> Statement:
            return self._insert(table, row, "kind = 'abort'"), [*row.values()]


class TombstoneTakenForRow(BrokenMarks):
    """The second recoverer takes the first one's tombstone for a row."""

    class marks_class(SQLiteMarks):
        def put_tombstone(self, table: str, row: dict[str, str]) -> Statement:
            return self._insert(table, row, "kind = 'commit'"), [*row.values()]


class IgnoresCase(BrokenMarks):
    """The key is compared without its case, as with MySQL's default collation."""

    class marks_class(SQLiteMarks):
        def create(self, table: str) -> str:
            return super().create(table).replace("xid varchar(64)", "xid varchar(64) collate nocase")


class WithoutBranches(BrokenMarks):
    """The row does not say which branches it decides."""

    class marks_class(SQLiteMarks):
        def mark(self, raw: Any, table: str, row: dict[str, str], delete: Sequence[str], **rest: Any) -> Any:
            return super().mark(raw, table, row | {"branches": "[]"}, delete, **rest)

        def commit_row(self, raw: Any, table: str, row: str, branches: str) -> None:
            super().commit_row(raw, table, row, "[]")


class WaitsForEver(Broken):
    """A tombstone waits for a row's lock without an end."""

    class driver_class(PsycopgDriver):
        class Marks(PostgreSQLMarks):
            def begin(self, raw: Any, lock_timeout: float, *, writes: bool) -> None:
                super().begin(raw, 0, writes=writes)

        marks = Marks()


class AllMarkedReaders(BrokenMarks):
    """Says of everything that it has only read, in a database that prepares nothing."""

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        driver = SQLiteDriver(settings, recovery=recovery)

        class Dialect(SQLiteDialect):
            def read_only_check(self, datasource: str, *_: Any, **__: Any) -> ReadOnlyCheck | None:
                return SaysReader(datasource)

        driver.dialect = Dialect()
        return driver
