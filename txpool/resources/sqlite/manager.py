"""SQLite's resource manager."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from txpool.resources.database import Database
from txpool.resources.parts import SparkPart, SQLAlchemyPart
from txpool.sql.dialects import SQLITE

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.dbapi.connection import PEP249Connection
    from txpool.findings.finding import Finding
    from txpool.resources.driver.driver import Driver
    from txpool.resources.records import RecordsTable
    from txpool.resources.sqlite.driver import SQLiteRawConnection
    from txpool.sql.characteristics import Characteristics

_OUTAGES = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})


class SQLite(Database):
    """SQLite over sqlite3, of the standard library."""

    driver = "sqlite3"
    database = "SQLite"
    sql = SQLITE
    schemes = ("sqlite:///",)
    url_example = "sqlite:///file.db"
    url_is_path = True
    modes = ("cmr", "last-resource", "local")
    spark = SparkPart(
        "txpool.spark.table.sqlite.write:DriverWrite",
        why_no_tasks="is a file with one writer, which Spark's tasks cannot share",
    )
    sqlalchemy = SQLAlchemyPart("sqlite+pysqlite://")
    outbox = "txpool.resources.sqlite.outbox:SQLiteOutbox"
    messages = "txpool.resources.sqlite.messages:SQLiteMessages"
    lake = "txpool.resources.sqlite.lake:SQLiteLake"

    def check(self, settings: DataSourceSettings) -> None:
        values = settings.properties
        if settings.url.endswith((":memory:", "/")):
            problem = f"names no file, and what is in memory cannot be recovered: write {self.url_example}"
            raise values.error("url", problem)
        if settings.mode == "xa":
            raise values.error("mode", "is no use: SQLite cannot prepare. Write mode = cmr, last-resource or local")
        for key in ("user", "password", "recovery.user", "recovery.password"):
            if key in values:
                raise values.error(key, "has no use: SQLite knows no users. Leave it out")

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        from txpool.resources.sqlite.driver import SQLiteDriver

        return SQLiteDriver(settings, recovery=recovery)

    def why_not_begin(self, characteristics: Characteristics) -> str:
        if characteristics.isolation in (None, "serializable"):
            return ""
        return (
            f"SQLite's transactions are serializable, and have no isolation {characteristics.isolation}: "
            "read-uncommitted takes a cache that connections share, which a pool's do not"
        )

    def begin_as(self, raw: SQLiteRawConnection, characteristics: Characteristics) -> None:
        from txpool.resources.sqlite.driver import begin_as

        begin_as(raw, characteristics)

    @property
    def handle(self) -> type[PEP249Connection]:
        from txpool.resources.sqlite.handle import SQLiteConnection

        return SQLiteConnection

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool:
        return _code(error) == sqlite3.SQLITE_BUSY

    def is_outage(self, error: BaseException) -> bool:
        return _code(error) in _OUTAGES

    @property
    def records(self) -> RecordsTable:
        return _records()

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        from txpool.resources.sqlite.check import findings

        return findings(settings)


def _code(error: BaseException) -> int:
    # The low byte of an extended code is the primary one.
    return getattr(error, "sqlite_errorcode", -1) & 0xFF if isinstance(error, sqlite3.Error) else -1


# A cached_property would take a lock, which a fork could leave held.
@cache
def _records() -> RecordsTable:
    from txpool.resources.sqlite.records import SQLiteRecords

    return SQLiteRecords()


MANAGER = SQLite()
