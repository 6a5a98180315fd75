"""DuckDB's resource manager."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from txpool.resources.database import Database
from txpool.sql.dialects import POSTGRESQL

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.dbapi.connection import PEP249Connection
    from txpool.findings.finding import Finding
    from txpool.resources.driver.driver import Driver


class DuckDB(Database):
    """DuckDB, marked, in a file. One process has it open at a time; its connections there share one database."""

    driver = "duckdb"
    database = "DuckDB"
    sql = POSTGRESQL  # whose grammar DuckDB's began as
    schemes = ("duckdb:///",)
    url_example = "duckdb:///file.duckdb"
    url_is_path = True
    modes = ("cmr", "local")
    requirement = "txpool[duckdb]"

    def check(self, settings: DataSourceSettings) -> None:
        values = settings.properties
        if settings.url.endswith((":memory:", "/")):
            problem = f"names no file, and what is in memory cannot be recovered: write {self.url_example}"
            raise values.error("url", problem)
        if settings.mode not in self.modes:
            raise values.error("mode", "is no use: DuckDB cannot prepare. Write mode = cmr or local")
        for key in ("user", "password", "recovery.user", "recovery.password"):
            if key in values:
                raise values.error(key, "has no use: DuckDB knows no users. Leave it out")

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        from txpool.resources.duckdb.driver import DuckDBDriver

        return DuckDBDriver(settings, recovery=recovery)

    @property
    def handle(self) -> type[PEP249Connection]:
        from txpool.resources.duckdb.handle import DuckDBConnection

        return DuckDBConnection

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool:
        duckdb = sys.modules.get("duckdb")
        return duckdb is not None and isinstance(error, duckdb.TransactionException) and "onflict" in str(error)

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        from txpool.resources.duckdb.check import findings

        return findings(settings)


MANAGER = DuckDB()
