"""The resource managers of this installation: one for each kind of database, found by entry point.

An entry point of the group `txpool.resource_managers` has the name that a datasource's file gives as `driver`, and
leads to an instance of `txpool.resources.manager.ResourceManager`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from txpool.resources.manager import ResourceManager

GROUP = "txpool.resource_managers"
_loaded: dict[str, ResourceManager] = {}
#: txpool's own, as in pyproject.toml. They are listed here as well, since a zip for Spark's executors has no metadata.
BUILT_IN = {
    "psycopg": "txpool.resources.postgresql.manager:MANAGER",
    "sqlite3": "txpool.resources.sqlite.manager:MANAGER",
}


class Drivers(Collection[str]):
    """The values that `driver` may have, txpool's own first. The metadata of packages is read only when needed."""

    def __contains__(self, driver: object) -> bool:
        return driver in BUILT_IN or driver in _entries()

    def __iter__(self) -> Iterator[str]:
        return iter(_entries())

    def __len__(self) -> int:
        return len(_entries())


DRIVERS = Drivers()


def find_resource_manager(driver: str) -> ResourceManager:
    """The resource manager of a driver. ConfigurationError where there is none, or where it cannot be imported."""
    manager = _loaded.get(driver)
    if manager is None:
        manager = _loaded[driver] = _load(driver)
    return manager


def known() -> list[ResourceManager]:
    """txpool's own resource managers, and those of other packages that this process has used."""
    others = [driver for driver in list(_loaded) if driver not in BUILT_IN]
    return [find_resource_manager(driver) for driver in (*BUILT_IN, *others)]


def _load(driver: str) -> ResourceManager:
    ours = BUILT_IN.get(driver)
    found = [EntryPoint(driver, ours, GROUP)] if ours else _entries().get(driver, [])
    if len(found) != 1:
        problem = f"is in several packages: {', '.join(each.value for each in found)}" if found else "is not installed"
        raise ConfigurationError(f"driver {driver!r} {problem}: write {' or '.join(DRIVERS)}")
    try:
        manager: ResourceManager = found[0].load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"driver {driver!r}: {found[0].value} cannot be imported: {error}") from error
    return manager


def of_url(url: str) -> ResourceManager | None:
    """The resource manager to whose schemes a url belongs; None where there is none.

    A package whose resource manager cannot be imported is skipped: whoever names its driver hears of it.
    """
    for driver in (*BUILT_IN, *(() if url.startswith(_own_schemes()) else DRIVERS)):
        with suppress(ConfigurationError):
            manager = find_resource_manager(driver)
            if url.startswith(manager.schemes):
                return manager
    return None


@cache
def _own_schemes() -> tuple[str, ...]:
    return tuple(scheme for driver in BUILT_IN for scheme in find_resource_manager(driver).schemes)


@cache
def _entries() -> dict[str, list[EntryPoint]]:
    entries = {name: [EntryPoint(name, value, GROUP)] for name, value in BUILT_IN.items()}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        if entry.name not in BUILT_IN:
            entries.setdefault(entry.name, []).append(entry)
    return entries
