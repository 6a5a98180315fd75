"""Datasources that were made in code: recovery reaches them by the login that the log has noted, if its file allows it.

The note is a claim. Everything that recovery connects with is the file's own: host, port, user, the reference to the
password, parameters such as sslmode. The note only chooses among the logins that the file allows, and says which
database it is if the file allows any. Whether it is the noted one, the database is asked: see `discovered`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote, urlencode

from txpool.config.logins import AllowedLogin, Login, read_note
from txpool.config.settings import DataSourceSettings
from txpool.datasource import DataSource
from txpool.errors import ConfigurationError
from txpool.log.locations import LocationNote
from txpool.resources.base import Role

#: The name in variables, such as TXPOOL_DS_NOTED_…: a note's own name would choose whose variables hold.
_NAME = "noted"
_DRIVERS = {"postgresql://": "psycopg", "mysql://": "pymysql"}


def open_noted(note: LocationNote, allowed: Sequence[AllowedLogin], role: Role = Role.PREPARED) -> DataSource:
    """The datasource of a note without a file. ConfigurationError if recovery's file does not allow its login.

    One over JDBC is reached by a driver of Python's: no class, and no place of classes, is taken from a note.

    Its pool is closed, so that nothing else of this process finds it: recovery opens connections of its own.
    """
    text = note.location.login
    login = read_note(text) if text else None
    if login is None:
        raise ConfigurationError(
            "the datasource was configured in code, so no file can be opened for it, and the log has noted no login "
            "that recovery could follow, as for Java databases and tables with names of one's own. Write a file for it"
        )
    for each in allowed:
        if each.allows(login):
            datasource = DataSource.from_settings(_settings(note.location.datasource, login, each, role))
            datasource.close()
            return datasource
    raise ConfigurationError(_why_not(login, allowed))


def _settings(name: str, login: Login, allowed: AllowedLogin, role: Role) -> DataSourceSettings:
    url, options = f"{allowed.address}{quote(login.database, safe='')}", dict(allowed.parameters)
    if login.scheme == "postgresql://":
        url = f"{url}?{urlencode(options, quote_via=quote)}".rstrip("?")
        options = {}
    settings = DataSourceSettings.load(
        name=_NAME,
        driver=_DRIVERS[login.scheme],
        mode=role.value,
        xa_evidence="row" if login.rows else "server",
        url=url,
        credentials=allowed.login.function or None,
        pool_min_size=0,
        **{f"driver_{key}": value for key, value in options.items()},
    )
    return replace(settings, name=name, password=allowed.password)


def _why_not(login: Login, allowed: Sequence[AllowedLogin]) -> str:
    remedy = "add this login to recovery.noted" if allowed else "allow it by this line in recovery's file"
    login = replace(login, rows=False)
    line = str(login) if allowed else f"recovery.noted = {login}"
    lacking = ""
    if not login.reference and not login.function:
        lacking = ". It names no reference to a password: if one is needed, write :${env:NAME} behind the user"
    return (
        "the datasource was configured in code, and recovery.noted does not allow the login that the log has noted. "
        f"Is it yours? Then {remedy}: {line}{lacking}"
    )
