"""The driver duckdb."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import duckdb

from txpool.errors import OperationalError, described, translated
from txpool.resources.driver.dialect import Dialect
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.marks import Marks
from txpool.resources.duckdb.connection import DuckDBRawConnection, DuckDBRawCursor
from txpool.resources.duckdb.dialect import DuckDBDialect
from txpool.resources.duckdb.marks import DuckDBMarks

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

SCHEME = "duckdb:///"
_LOCKED = "Could not set lock on file"


def has_other_process(error: BaseException) -> bool:
    """Whether an error of connect() says that another process has the file open."""
    return isinstance(error, duckdb.IOException) and _LOCKED in str(error)


class DuckDBDriver(Driver):
    """DuckDB. Thread-safe; a raw connection has one user at a time, and may change threads."""

    module: Any = duckdb
    dialect: Dialect = DuckDBDialect()
    marks: Marks = DuckDBMarks()

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self._settings = settings
        self._path = settings.url.removeprefix(SCHEME)
        #: Recovery makes no file: an empty one would hide that the right one is missing.
        self._creates = not recovery

    def connect(self, timeout: float | None = None) -> DuckDBRawConnection:
        name = self._settings.name
        if not self._creates and not os.path.isfile(self._path):
            raise OperationalError(
                f"datasource {name}: {self._path} is no file, and recovery makes none: correct url, mount the folder "
                "or restore the file. Nothing was decided"
            )
        try:
            with translated():
                return DuckDBRawConnection(self._path, self._settings.connect_options())
        except duckdb.IOException as error:
            if not has_other_process(error):
                raise
            raise OperationalError(
                f"datasource {name}: another process has {self._path} open, and DuckDB lets one at a time: "
                f"{described(error)}. Nothing was done. Recovery reaches the file once that process has ended, or "
                "within it"
            ) from error

    def execute(self, raw: DuckDBRawConnection, statement: str, parameters: Sequence[Any] = ()) -> DuckDBRawCursor:
        return raw.cursor().execute(statement, parameters)

    def is_open(self, raw: DuckDBRawConnection) -> bool:
        return not raw.closed

    def is_clean(self, raw: DuckDBRawConnection) -> bool:
        return self.is_open(raw) and raw.transaction is None and not raw.used

    def reset(self, raw: DuckDBRawConnection, timeout: float | None = None) -> None:
        """Open it anew: nobody knows what its statements have set, and there is no round trip."""
        with translated():
            raw.rollback()
            raw.open_anew()

    def ping(self, raw: DuckDBRawConnection, timeout: float | None = None) -> None:
        with translated():
            raw.db.execute("select 1")

    def close(self, raw: DuckDBRawConnection) -> None:
        raw.close()

    def cancel(self, raw: DuckDBRawConnection, timeout: float | None = None) -> None:
        with suppress(duckdb.Error):
            raw.db.interrupt()

    def begin(self, raw: DuckDBRawConnection, label: str = "") -> bool:
        with translated():
            raw.begin()
        return True

    def reached_server(self, error: BaseException) -> bool:
        return False  # there is none, and the connection tells whether its transaction is open

    def ended_by(self, raw: DuckDBRawConnection, raw_cursor: DuckDBRawCursor) -> str | None:
        if not raw_cursor.hinted:
            return None
        try:
            if not raw.ended():
                return None
        except duckdb.TransactionException:  # a statement has failed: the transaction is open, and can only roll back
            return None
        raw.transaction = None
        return "commit"
