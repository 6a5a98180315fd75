"""The DB-API drivers, one file for each, behind the one protocol of `base`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.errors import ConfigurationError
from txpool.resources.driver import Driver

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings

__all__ = ["Driver", "make_driver"]


def make_driver(settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
    """The driver of a datasource; `recovery` connects as recovery's own user. ConfigurationError for an unknown one."""
    if settings.driver == "psycopg":
        from txpool.resources.postgresql.driver import PsycopgDriver

        return PsycopgDriver(settings, recovery=recovery)
    if settings.driver == "sqlite3":
        from txpool.resources.sqlite.driver import SQLiteDriver

        return SQLiteDriver(settings)
    raise ConfigurationError(f"datasource {settings.name}: no driver is called {settings.driver!r}: psycopg or sqlite3")
