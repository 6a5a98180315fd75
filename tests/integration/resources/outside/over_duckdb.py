"""A resource manager that is no part of txpool: DuckDB, marked by a row in its table `xids`.

DuckDB cannot prepare. One process has the file open at a time: recovery reaches it once the application's process has
ended, or within that process. Its connections share one database there, so that a transaction's row and another's
tombstone meet: the later COMMIT of the two is refused for the key.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import duckdb

from txpool.config.settings import DataSourceSettings
from txpool.dbapi.connection import Connection
from txpool.errors import OperationalError, described, translate, translated
from txpool.findings.finding import Finding, ok
from txpool.resources.base import BranchOutcome, Refused
from txpool.resources.database import Database
from txpool.resources.driver.dialect import Dialect
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.marks import IDENTITY, AbortRecorded, Marks, WrongTable
from txpool.sql.dialects import POSTGRESQL, SqlDialect

_SCHEME = "duckdb:///"
_TRANSACTION = "select txid_current()"


class Cursor:
    """A PEP 249 cursor. It reads its whole result at once, since a connection of DuckDB has one at a time."""

    arraysize = 1
    rowcount = -1

    def __init__(self, raw: Raw) -> None:
        self.connection = raw
        self.description: Any = None
        self._rows: list[Any] = []

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        self.connection.used = True
        found = self.connection.db.execute(statement, [*parameters])
        self.description = found.description
        self._rows = found.fetchall()[::-1] if found.description else []
        return self

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> Cursor:
        for each in parameters:
            self.execute(statement, each)
        return self

    def fetchone(self) -> Any:
        return self._rows.pop() if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[Any]:
        return [self._rows.pop() for _ in range(min(size or self.arraysize, len(self._rows)))]

    def fetchall(self) -> list[Any]:
        return self.fetchmany(len(self._rows)) if self._rows else []

    def __next__(self) -> Any:
        if not self._rows:
            raise StopIteration
        return self._rows.pop()

    def close(self) -> None:
        self._rows = []

    def setinputsizes(self, sizes: Any) -> None:
        """Nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Nothing, as PEP 249 allows."""


class Raw:
    """A physical connection, and which transaction is open on it."""

    marks_identity = ""

    def __init__(self, path: str) -> None:
        self.closed = True
        self.db = duckdb.connect(path)
        #: DuckDB's number of the open transaction; None outside of one.
        self.transaction: int | None = None
        #: Something may have been set in its session, or, behind an interrupt, a transaction may be open.
        self.used = False
        self.closed = False

    def cursor(self) -> Cursor:
        return Cursor(self)

    def begin(self) -> None:
        if self.transaction is None:
            self.used = True
            self.db.execute("begin")
            (self.transaction,) = self.db.execute(_TRANSACTION).fetchone()  # type: ignore[misc]

    def require_transaction(self) -> None:
        """Refused if it is not open any more, or a statement has failed: COMMIT would roll back without an error."""
        try:
            ended = self.transaction is None or self.db.execute(_TRANSACTION).fetchone() != (self.transaction,)
        except duckdb.Error as error:
            raise Refused(f"COMMIT was not sent: {described(error)}") from error
        if ended:
            raise Refused("COMMIT was not sent: the transaction has ended before it")

    def commit(self) -> None:
        if self.transaction is not None:
            self.db.execute("commit")
            self.transaction = None

    def rollback(self) -> None:
        if self.transaction is not None:
            self.transaction = None
            with suppress(duckdb.TransactionException):  # it has ended already
                self.db.execute("rollback")

    def close(self) -> None:
        self.closed = True
        self.db.close()


class Local(Dialect):
    """Local transactions."""

    def in_transaction(self, raw: Raw) -> bool:
        return raw.transaction is not None

    def commit(self, raw: Raw) -> None:
        raw.require_transaction()
        try:
            raw.commit()
        except duckdb.TransactionException as error:  # a conflict, or a key that another has committed meanwhile
            raw.transaction = None
            translate(error)
            raise Refused(f"DuckDB refused to commit: {described(error)}") from error

    def rollback(self, driver: Driver, raw: Raw, until: float | None) -> BranchOutcome:
        try:
            raw.rollback()
        except duckdb.Error:
            driver.close(raw)
        return BranchOutcome.ROLLED_BACK


class DuckDBMarks(Marks):
    """The table of marks."""

    parameter = "?"
    made_at_type = "timestamp not null default current_timestamp"

    def qualified_name(self, raw: Raw, table: str) -> str | None:
        schema, _, name = table.rpartition(".")
        query = "select 1 from duckdb_tables() where not temporary and schema_name = ? and table_name = ?"
        found = raw.db.execute(query, [schema or "main", name]).fetchone()
        return f"{schema or 'main'}.{name}" if found else None

    def require_ours(self, raw: Raw, table: str, roles: Collection[str], *, writes: bool) -> None:
        """Nothing: DuckDB has no roles. The file's permissions say who may write it."""

    def is_sole_writer(self, raw: Raw) -> bool:
        return False

    def database_identity(self, raw: Raw) -> str:
        return ""

    def mark(
        self,
        raw: Raw,
        table: str,
        row: dict[str, str],
        delete: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
        raw.require_transaction()
        query = f"select 1 from {table} where xid = ? and action_uid = ?"
        if identity and raw.marks_identity != identity and not raw.db.execute(query, [IDENTITY, identity]).fetchone():
            raise WrongTable
        raw.marks_identity = identity
        try:
            raw.db.execute(self._plain_insert(table, row), [*row.values()])
        except duckdb.ConstraintException as error:
            raise AbortRecorded from error
        return row["xid"], []  # what is deleted here would conflict with whoever reads it: recovery deletes it

    def commit_row(self, raw: Raw, table: str, row: str, branches: str) -> None:
        try:
            raw.require_transaction()
            raw.db.execute(f"update {table} set branches = ? where xid = ?", [branches, row])
        except duckdb.Error as error:
            translate(error)
            raise Refused(f"COMMIT was not sent: {described(error)}") from error
        Local().commit(raw)

    def begin(self, raw: Raw, lock_timeout: float, *, writes: bool) -> None:
        raw.begin()


class DuckDB(Driver):
    """The driver of one datasource."""

    module: Any = duckdb
    dialect = Local()
    marks = DuckDBMarks()

    def __init__(self, settings: DataSourceSettings, *, recovery: bool) -> None:
        self._name, self._path = settings.name, settings.url.removeprefix(_SCHEME)
        self._recovery = recovery

    def connect(self, timeout: float | None = None) -> Raw:
        if self._recovery and not os.path.isfile(self._path):
            raise OperationalError(f"datasource {self._name}: {self._path} is no file, and recovery makes none")
        with translated():
            return Raw(self._path)

    def execute(self, raw: Raw, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        return raw.cursor().execute(statement, parameters)

    def is_open(self, raw: Raw) -> bool:
        return not raw.closed

    def is_clean(self, raw: Raw) -> bool:
        return self.is_open(raw) and raw.transaction is None and not raw.used

    def reset(self, raw: Raw, timeout: float | None = None) -> None:
        """Open it anew: nobody knows what its statements have set, and there is no round trip."""
        with translated():
            raw.rollback()
            raw.close()
            raw.__init__(self._path)  # type: ignore[misc]

    def ping(self, raw: Raw, timeout: float | None = None) -> None:
        with translated():
            raw.db.execute("select 1")

    def close(self, raw: Raw) -> None:
        raw.close()

    def cancel(self, raw: Raw, timeout: float | None = None) -> None:
        with suppress(duckdb.Error):
            raw.db.interrupt()

    def begin(self, raw: Raw, label: str = "") -> bool:
        with translated():
            raw.begin()
        return True

    def reached_server(self, error: BaseException) -> bool:
        return False  # there is none, and the connection tells whether its transaction is open

    def ended_by(self, raw: Raw, raw_cursor: Any) -> str | None:
        if raw.transaction is None:
            return None
        try:
            if raw.db.execute(_TRANSACTION).fetchone() == (raw.transaction,):
                return None
        except duckdb.TransactionException:  # a statement has failed: the transaction is open, and can only roll back
            return None
        raw.transaction = None
        return "commit"


class Handle(Connection):
    """The connection that users hold."""

    __slots__ = ()
    _driver_class = Raw


class OverDuckDB(Database):
    driver = "duckdb"
    database = "DuckDB"
    sql: SqlDialect = POSTGRESQL  # whose grammar DuckDB's began as
    schemes = (_SCHEME,)
    url_example = "duckdb:///file.duckdb"
    url_is_path = True
    modes = ("cmr", "local")
    requirement = "duckdb"

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        return DuckDB(settings, recovery=recovery)

    @property
    def handle(self) -> type[Connection]:
        return Handle

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        with closing(self.make_driver(settings).connect()):
            yield ok("connection", f"{self.database} {duckdb.__version__} opens {settings.url}")


MANAGER = OverDuckDB()
