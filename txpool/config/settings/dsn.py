"""The settings of a datasource that is given by a connection string alone: connect("postgresql://app@localhost/orders").

Its mode is xa if the database can prepare, else local. All other keys have their defaults.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING

from txpool.config.settings import DataSourceSettings
from txpool.resource_managers import RegisteredManager, known, of_url

if TYPE_CHECKING:
    from txpool.resources.parts import DsnPart

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_DIGITS = 8


def is_dsn(text: str) -> bool:
    """Whether a text is a connection string: a url, or a string of key=value that a database's driver takes."""
    return of_url(text) is not None or _of_driver(text) is not None


def _of_driver(text: str) -> tuple[RegisteredManager, DsnPart] | None:
    """The resource manager whose driver takes the string of key=value, and its part for that."""
    return next(((each, each.dsn) for each in known() if each.dsn is not None and each.dsn.matches(text)), None)


def key_of(dsn: str) -> str:
    """What this process knows a connection string by. It shows no password, and a relative path's folder is in it."""
    manager = of_url(dsn)
    has_path = (manager is not None and manager.url_is_path) or "${file:" in dsn
    return f"dsn {_digest(f'{os.getcwd()} {dsn}' if has_path else dsn)}"


def settings_of(dsn: str) -> DataSourceSettings:
    """The settings. The name is made of the database's and of the url without a password, so that it stays the same.

    Errors: ConfigurationError, which shows no password.
    """
    manager, password = of_url(dsn), None
    if manager is None:
        found = _of_driver(dsn)
        assert found is not None  # noqa: S101 - `is_dsn` has seen it
        manager, part = found
        dsn, password = part.url_of(dsn)
    mode = "xa" if "xa" in manager.modes else "local"
    options = {"driver": manager.driver, "mode": mode, "url": dsn, "password": password}
    url = DataSourceSettings.load(name="dsn", **options).url
    last = url.partition("?")[0].rstrip("/").rpartition("/")[2]
    name = _NOT_IN_NAMES.sub("-", last).strip("-.")[: 31 - _DIGITS] or manager.driver
    return DataSourceSettings.load(name=f"{name}-{_digest(url)[:_DIGITS]}", **options)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
