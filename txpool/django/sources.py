"""The datasource of an alias: what DATABASES names, with what Django needs of its sessions, over the database NAME.

NAME in settings.py is a datasource's file or registered name. Django's own code takes NAME for the database's: so the
first connection of an alias notes the datasource under the key TXPOOL, and puts the database's name in its place. A
test database has another name, and a datasource of its own.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from txpool.config.keys import DATASOURCE_KEYS
from txpool.config.settings import DataSourceSettings
from txpool.datasource import DataSource
from txpool.datasource.registry import registered, search_folders
from txpool.errors import ConfigurationError
from txpool.locks import Lock
from txpool.resources.marked.xids import Xids
from txpool.tm.manager import configure

if TYPE_CHECKING:
    _Client = Any
else:
    _Client = object

_SOURCE: Final = "TXPOOL"
_KEYS: Final = {key.word: key.name for key in DATASOURCE_KEYS}
_DRIVERS: Final = ("psycopg", "pymysql", "mysqlclient", "sqlite3")
_IN_THE_FILE: Final = ("USER", "PASSWORD", "HOST", "PORT")
#: OPTIONS that are Django's own, and not the driver's.
_OPTIONS: Final = frozenset({"datasource", "server_side_binding"})
#: By the datasource's file or name, and the database's name.
_datasources: dict[tuple[str, str], DataSource] = {}
_loaded: dict[str, DataSourceSettings] = {}
_lock = Lock()
_configured: list[str] = []


def driver_of(settings_dict: dict[str, Any], alias: str) -> str:
    """The driver of an alias's datasource, once its settings are as Django's own code reads them.

    ImproperlyConfigured if they have what belongs into the datasource's file, or name none.
    """
    named = settings_dict["NAME"]
    options = settings_dict["OPTIONS"]
    source = settings_dict.setdefault(_SOURCE, str(options.get("datasource") or named or ""))
    loaded = _load(source, alias)
    if loaded.driver not in _DRIVERS:
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}]: datasource {loaded.name} has driver = {loaded.driver}, and Django's ENGINE "
            f"txpool.django works over {', '.join(_DRIVERS)}"
        )
    for key in _IN_THE_FILE:
        if settings_dict.get(key):
            raise ImproperlyConfigured(
                f"DATABASES[{alias!r}][{key!r}] is for Django's own engines: write it into the file of datasource "
                f"{loaded.name}"
            )
    for option in options.keys() - _OPTIONS:
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}]['OPTIONS'][{option!r}] is for Django's own engines: the file of datasource "
            f"{loaded.name} has keys for the isolation level, the pool and its first statement, and "
            f"driver.{option} if the driver knows it"
        )
    if not settings_dict["AUTOCOMMIT"]:
        raise ImproperlyConfigured(f"DATABASES[{alias!r}]['AUTOCOMMIT']: txpool.django is for True; use atomic()")
    database = database_of(loaded)
    if str(named or "") in (source, ""):
        settings_dict["NAME"] = database
    if loaded.driver == "sqlite3" and settings_dict["TEST"]["NAME"] is None:
        # Django would take one in memory, which each connection has for itself.
        settings_dict["TEST"]["NAME"] = str(Path(database).with_name(f"test_{Path(database).name}"))
    return loaded.driver


def _load(source: str, alias: str) -> DataSourceSettings:
    loaded = _loaded.get(source)
    if loaded is None:
        if not source:
            raise ImproperlyConfigured(f"DATABASES[{alias!r}]['NAME'] is missing: name a datasource's file")
        known = registered.get(source)
        try:
            loaded = DataSourceSettings.load(_path(source)) if known is None else known.settings
        except ConfigurationError as error:
            raise ImproperlyConfigured(f"DATABASES[{alias!r}]['NAME']: {error}") from error
        _loaded[source] = loaded
    return loaded


def _path(source: str) -> str:
    """A relative path is one from the working directory, or else from BASE_DIR, if settings.py has it."""
    base = getattr(django_settings, "BASE_DIR", None)
    for folder in ("", *search_folders, *(() if base is None else (str(base),))):
        path = os.path.join(folder, source)
        if os.path.exists(path):
            return path
    return source


def database_of(loaded: DataSourceSettings) -> str:
    """The name of the database in a datasource's url; of SQLite, the file."""
    if loaded.driver == "sqlite3":
        return loaded.url.removeprefix("sqlite:///")
    return unquote(urlsplit(loaded.url).path.removeprefix("/"))


class AliasClient(_Client):
    """What runs the database's own program, as dbshell does: its address is the datasource's.

    Before Django's own class among the bases of an alias's `client_class`.
    """

    @classmethod
    def settings_to_cmd_args_env(cls, settings_dict: dict[str, Any], parameters: Any) -> Any:
        return super().settings_to_cmd_args_env(with_address(settings_dict), parameters)


def with_address(settings_dict: dict[str, Any]) -> dict[str, Any]:
    """An alias's settings as Django's own engines have them: with a password, so never log or keep them."""
    loaded = _loaded[settings_dict[_SOURCE]]
    url = urlsplit(loaded.url)
    options: dict[str, Any] = dict(parse_qsl(url.query)) | loaded.connect_options()
    if files := {name: options[f"ssl_{name}"] for name in ("ca", "cert", "key") if f"ssl_{name}" in options}:
        options["ssl"] = files  # as mysqlclient has PyMySQL's, and Django reads them
    return settings_dict | {
        "HOST": options.get("unix_socket") or unquote(url.hostname or "") or options.get("host", ""),
        "PORT": str(url.port or options.get("port") or ""),
        "USER": options.get("user") or unquote(url.username or ""),
        "PASSWORD": options.get("password", ""),
        "OPTIONS": options,
    }


def datasource_of(settings_dict: dict[str, Any], database: str, defaults: dict[str, str]) -> DataSource:
    """The datasource over the database of that name; `defaults` are for keys that its file does not have."""
    key = settings_dict[_SOURCE], database
    datasource = _datasources.get(key)
    if datasource is None:
        with _lock:
            datasource = _datasources.get(key)
            if datasource is None:
                put_in_force()
                datasource = _datasources[key] = _open(
                    _loaded[key[0]], database, defaults, is_test=database == settings_dict["NAME"]
                )
    return datasource


def forget(settings_dict: dict[str, Any], database: str) -> None:
    """Close the datasource over a database that Django removes now."""
    datasource = _datasources.pop((settings_dict[_SOURCE], database), None)
    if datasource is not None:
        datasource.close()


def _open(loaded: DataSourceSettings, database: str, defaults: dict[str, str], *, is_test: bool) -> DataSource:
    values = loaded.properties
    options = {word: value for word, value in defaults.items() if _KEYS.get(word, _of_driver(word)) not in values}
    elsewhere = database != database_of(loaded)
    if elsewhere:
        options |= {"name": f"{loaded.name[:27]}-test", "url": _url(loaded, database)}
    found = DataSourceSettings.load(values, **options)
    # A function that supplies the password is in no file.
    datasource = DataSource.from_settings(found if loaded.issuer is None else replace(found, issuer=loaded.issuer))
    if elsewhere and is_test and datasource.mode == "cmr":
        Xids(datasource.name, datasource.driver_adapter, found.cmr_table).create()
    return datasource


def _of_driver(word: str) -> str:
    return f"driver.{word.removeprefix('driver_')}"


def _url(loaded: DataSourceSettings, database: str) -> str:
    if loaded.driver == "sqlite3":
        return f"sqlite:///{os.path.abspath(database)}"
    return urlunsplit(urlsplit(loaded.url)._replace(path=f"/{quote(database, safe='')}"))


def put_in_force() -> None:
    """Put TXPOOL_CONF of settings.py in force, once. Without it txpool finds its file by itself."""
    file = getattr(django_settings, "TXPOOL_CONF", None)
    if file is not None and str(file) not in _configured:
        _configured.append(str(file))
        try:
            configure(file)
        except BaseException:
            _configured.remove(str(file))
            raise
