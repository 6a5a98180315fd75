"""How `txpool.connect` finds a datasource: by its registered name, its file, or a connection string."""

from __future__ import annotations

import os
from pathlib import Path

from txpool.config.secrets import Secret, redact_url
from txpool.config.settings.dsn import is_dsn, key_of, settings_of
from txpool.config.sqlalchemy_url import sqlalchemy_advice
from txpool.datasource.datasource import DataSource, as_database, open_file
from txpool.datasource.registry import by_key, registered, search_folders, shared
from txpool.datasource.source import Source
from txpool.dbapi.connection import PEP249Connection
from txpool.errors import ConfigurationError

_SCHEME = "txpool:"
_URL = "txpool:///"


def connect(
    target: str | Path | DataSource,
    timeout: float | None = None,
    *,
    user: str | None = None,
    password: str | Secret | None = None,
) -> PEP249Connection:
    """Take a connection of a datasource: itself, its registered name, its file, or a connection string.

    A connection string is a url, as postgresql://app@localhost/orders or sqlite:///orders.db, or what libpq takes, as
    "host=localhost dbname=orders". The same string has the same pool each time. Arguments and errors: as
    `DataSource.connect`.
    """
    return find(target).connect(timeout, user=user, password=password)


def find(target: str | Path | Source) -> DataSource:
    """The datasource of a registered name, a file or a connection string, also with `txpool:` before it.

    In SQLAlchemy's form, as txpool:///conf/orders.properties, it is a file's.

    Errors: ConfigurationError; NotSupportedError if it is no database.
    """
    return as_database(find_source(target))


def find_file(path: str | Path) -> DataSource:
    """The datasource that a file describes. Errors: as `find`."""
    return as_database(_in_a_file(os.fspath(path)) or open_file(path))


def _in_a_file(name: str) -> Source | None:
    for folder in ("", *search_folders):
        path = os.path.join(folder, name)
        if os.path.abspath(path) in by_key or os.path.exists(path):
            return open_file(path)
    return None


def find_source(target: str | Path | Source) -> Source:
    """As `find`, of any kind."""
    if isinstance(target, Source):
        return target
    name = str(target)
    if name.startswith(_URL):
        return find_file(name.removeprefix(_URL))
    name = name.removeprefix(_SCHEME)
    datasource = registered.get(name) or _in_a_file(name)
    if datasource is not None:
        return datasource
    if is_dsn(name):
        return shared(key_of(name), lambda: DataSource.from_settings(settings_of(name)))
    advice = sqlalchemy_advice(name)
    if advice:
        raise ConfigurationError(f"{redact_url(name)!r} is no url of a datasource: {advice}")
    names = ", ".join(sorted(registered)) or "none"
    where = "" if os.path.isabs(name) else f" (in {' or '.join(dict.fromkeys((os.getcwd(), *search_folders)))})"
    raise ConfigurationError(
        f"{redact_url(name)!r} is neither a registered datasource (these are: {names}), nor a file{where}, nor a "
        "connection string: register(datasource), name its .properties file, or give a url"
    )
