"""The resource managers of this installation: one for each kind of database, found by entry point.

An entry point of the group `txpool.resource_managers` has the name that a datasource's file gives as `driver`, and
leads to an instance of `txpool.resources.manager.ResourceManager`. A file may also name the class of a resource or of a
resource manager itself: `driver = package.module:Class`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from txpool.errors import ConfigurationError, described

if TYPE_CHECKING:
    from txpool.resources.parts import DsnPart, LogPart
    from txpool.sql.characteristics import Characteristics

logger = logging.getLogger("txpool")

GROUP = "txpool.resource_managers"
_CODE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
#: Makes a resource manager of what a file names. It is above this module, and imported when it is needed.
_MANAGER_OF = "txpool.resources.own.manager:manager_of"
#: Brings one up to date that was written for an earlier version; above this module, too.
_FORMER = "txpool.resources.former:brought_up_to_date"
#: What was imported, or why it cannot be.
_loaded: dict[str, RegisteredManager | str] = {}
#: Those whose driver somebody has given, and not a url alone.
_used: dict[str, RegisteredManager] = {}
#: The driver of queues in a datasource's table.
QUEUE = "sql-queue"
#: The driver of folders of files.
FILES = "files"
#: The driver of Iceberg tables.
ICEBERG = "iceberg"
#: The driver of Delta tables in a folder.
DELTA = "delta"
#: Those of databases.
DATABASES = ("psycopg", "sqlite3", "pymysql", "mysqlclient", "jdbc", "duckdb")
#: txpool's own, as in pyproject.toml. They are listed here as well, since a zip for Spark's executors has no metadata.
BUILT_IN = {
    "psycopg": "txpool.resources.postgresql.manager:MANAGER",
    "sqlite3": "txpool.resources.sqlite.manager:MANAGER",
    "pymysql": "txpool.resources.mysql.manager:PYMYSQL",
    "mysqlclient": "txpool.resources.mysql.manager:MYSQLCLIENT",
    "jdbc": "txpool.resources.jdbc.manager:MANAGER",
    "duckdb": "txpool.resources.duckdb.manager:MANAGER",
    "kafka": "txpool.resources.kafka.manager:MANAGER",
    "jms": "txpool.resources.jms.manager:MANAGER",
    QUEUE: "txpool.resources.messages.manager:MANAGER",
    FILES: "txpool.resources.files.manager:MANAGER",
    "s3": "txpool.resources.s3.manager:MANAGER",
    ICEBERG: "txpool.resources.iceberg.manager:MANAGER",
    DELTA: "txpool.resources.delta.manager:MANAGER",
}


class RegisteredManager(Protocol):
    """A resource manager, as configuration reads it: see `txpool.resources.manager.ResourceManager`."""

    driver: str
    database: str
    schemes: tuple[str, ...]
    url_example: str
    modes: tuple[str, ...]
    url_is_path: bool
    writes_rows: bool
    instead_of_connecting: str
    requirement: str
    dsn: DsnPart | None
    log: LogPart | None

    def url_parameters(self) -> Collection[str]: ...

    def check(self, settings: Any) -> None: ...

    def why_not_begin(self, characteristics: Characteristics) -> str: ...

    def is_transient(self, error: BaseException, *, at_its_end: bool) -> bool: ...

    def is_outage(self, error: BaseException) -> bool: ...


class Drivers(Collection[str]):
    """The values that `driver` may have, txpool's own first. The metadata of packages is read only when needed."""

    def __contains__(self, driver: object) -> bool:
        if not isinstance(driver, str):
            return False
        return driver in BUILT_IN or names_code(driver) or bool(_entries_of(driver))

    def __iter__(self) -> Iterator[str]:
        return iter(_entries())

    def __len__(self) -> int:
        return len(_entries())


DRIVERS = Drivers()


def names_code(driver: str) -> bool:
    """Whether a driver is `package.module:Class`: its module runs when a datasource's settings are read."""
    return _CODE.fullmatch(driver) is not None


def find_resource_manager(driver: str) -> RegisteredManager:
    """The resource manager of a driver. ConfigurationError if there is none, or if it cannot be imported."""
    manager = _load(driver)
    _used[driver] = manager
    return manager


def known() -> list[RegisteredManager]:
    """txpool's own resource managers, and those of other packages whose driver this process has been given."""
    ours = [_load(driver) for driver in BUILT_IN]
    return ours + [manager for driver, manager in list(_used.items()) if driver not in BUILT_IN]


def of_url(url: str) -> RegisteredManager | None:
    """The resource manager to whose schemes a url belongs; None if there is none.

    A package whose resource manager cannot be imported is skipped: whoever gives its driver is told.
    """
    if "://" not in url or not url[:1].isalpha() or url.startswith("jdbc:"):
        return None
    for driver in chain(BUILT_IN, DRIVERS):  # which reads no metadata if one of ours has it
        with suppress(ConfigurationError):
            manager = _load(driver)
            if url.startswith(manager.schemes):
                return manager
    return None


def _load(driver: str) -> RegisteredManager:
    """Import it, once. An import that has failed is not tried again."""
    loaded = _loaded.get(driver)
    if loaded is None:
        loaded = _loaded[driver] = _import(driver)
    if isinstance(loaded, str):
        raise ConfigurationError(loaded)
    return loaded


def _import(driver: str) -> RegisteredManager | str:
    """The resource manager, or why there is none. ConfigurationError if a package may yet bring it."""
    if names_code(driver):
        return _import_code(driver)
    ours = BUILT_IN.get(driver)
    found = [EntryPoint(driver, ours, GROUP)] if ours else _entries_of(driver)
    if len(found) != 1:
        problem = f"is in several packages: {', '.join(each.value for each in found)}" if found else "is not installed"
        raise ConfigurationError(f"driver {driver!r} {problem}: write {' or '.join(DRIVERS)}")
    try:
        manager: RegisteredManager = found[0].load()
    except Exception as error:  # whatever a package of somebody else's raises
        return f"driver {driver!r}: {found[0].value} cannot be imported: {described(error)}{_instead_of(error)}"
    schemes = getattr(manager, "schemes", None)
    if not (isinstance(schemes, tuple) and schemes and all(isinstance(each, str) and each for each in schemes)):
        return f"driver {driver!r}: {found[0].value} is no resource manager: it has no url schemes"
    return manager if ours else _brought_up_to_date(manager)


def _brought_up_to_date(manager: RegisteredManager) -> RegisteredManager:
    bring: Callable[[RegisteredManager], RegisteredManager] = EntryPoint("former", _FORMER, GROUP).load()
    return bring(manager)


def _import_code(driver: str) -> RegisteredManager:
    """The resource manager of `package.module:Class`. ConfigurationError: it may be corrected, and tried again."""
    try:
        named = EntryPoint(driver, driver, GROUP).load()
        manager: RegisteredManager | str = EntryPoint(driver, _MANAGER_OF, GROUP).load()(driver, named)
    except Exception as error:  # whatever the user's own module raises
        raise ConfigurationError(
            f"driver {driver!r} cannot be imported: {described(error)}{_instead_of(error)}"
        ) from error
    if isinstance(manager, str):
        raise ConfigurationError(manager)
    return _brought_up_to_date(manager)


def _instead_of(error: Exception) -> str:
    """What to write if it has imported a module of ours that has moved."""
    if isinstance(error, ImportError) and (error.name or "").startswith("txpool."):
        return ". What a resource manager needs is in txpool.resource: import it from there"
    return ""


def _entries_of(driver: str) -> list[EntryPoint]:
    """The entry points of a name. A package may have come since the last look, as one that Spark sends to a worker."""
    if driver not in _entries():
        _entries.cache_clear()
    return _entries().get(driver, [])


@cache
def _entries() -> dict[str, list[EntryPoint]]:
    entries = {name: [EntryPoint(name, value, GROUP)] for name, value in BUILT_IN.items()}
    try:
        others = sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
    except Exception as error:  # the metadata of any package may be damaged
        logger.warning("the resource managers of other packages cannot be read, and are not used: %r", error)
        return entries
    for entry in others:
        if entry.name not in BUILT_IN:
            entries.setdefault(entry.name, []).append(entry)
    return entries
