"""The DB-API drivers, one file for each, behind the one protocol of `base`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.drivers.base import Driver
from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from txpool.settings import DataSourceSettings

__all__ = ["Driver", "make_driver"]


def make_driver(settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
    """The driver of a datasource; `recovery` connects as recovery's own user. ConfigurationError for an unknown one."""
    if settings.driver == "psycopg":
        from txpool.drivers.psycopg import PsycopgDriver

        return PsycopgDriver(settings, recovery=recovery)
    if settings.driver == "sqlite3":
        from txpool.drivers.sqlite import SQLiteDriver

        return SQLiteDriver(settings)
    raise ConfigurationError(f"datasource {settings.name}: no driver is called {settings.driver!r}: psycopg or sqlite3")
