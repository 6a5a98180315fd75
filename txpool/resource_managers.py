"""The resource managers of this installation: one for each kind of database, found by entry point.

An entry point of the group `txpool.resource_managers` has the name that a file gives as `driver`, and leads to a
`txpool.resources.manager.ResourceManager`. A package that brings one needs no change in txpool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from txpool.resources.manager import ResourceManager

GROUP = "txpool.resource_managers"
_loaded: dict[str, ResourceManager] = {}
#: Ours, as pyproject.toml has them: they are found without the metadata of a package, too, as in a zip for executors.
BUILT_IN = {
    "psycopg": "txpool.resources.postgresql.manager:MANAGER",
    "sqlite3": "txpool.resources.sqlite.manager:MANAGER",
}


class Drivers(Collection[str]):
    """What `driver` may be, ours first. The metadata of packages is read only where it is needed."""

    def __contains__(self, driver: object) -> bool:
        return driver in BUILT_IN or driver in _entries()

    def __iter__(self) -> Iterator[str]:
        return iter(_entries())

    def __len__(self) -> int:
        return len(_entries())


DRIVERS = Drivers()


def find(driver: str) -> ResourceManager:
    """The resource manager of a driver. ConfigurationError where there is none, or where it cannot be loaded."""
    manager = _loaded.get(driver)
    if manager is None:
        manager = _loaded[driver] = _load(driver)
    return manager


def known() -> list[ResourceManager]:
    """Ours, and those that this process has used."""
    return [find(driver) for driver in (*BUILT_IN, *(each for each in list(_loaded) if each not in BUILT_IN))]


def _load(driver: str) -> ResourceManager:
    ours = BUILT_IN.get(driver)
    found = [EntryPoint(driver, ours, GROUP)] if ours else _entries().get(driver, [])
    if len(found) != 1:
        told = f"is brought by several packages: {', '.join(each.value for each in found)}" if found else "is none"
        raise ConfigurationError(f"driver {driver!r} {told}: write {' or '.join(DRIVERS)}")
    try:
        manager: ResourceManager = found[0].load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"driver {driver!r}: {found[0].value} cannot be loaded: {error}") from error
    return manager


def of_url(url: str) -> ResourceManager | None:
    """The resource manager whose urls begin as this one does; None where there is none."""
    for driver in (*BUILT_IN, *(() if url.startswith(_own_schemes()) else DRIVERS)):
        manager = find(driver)
        if url.startswith(manager.schemes):
            return manager
    return None


@cache
def _own_schemes() -> tuple[str, ...]:
    return tuple(scheme for driver in BUILT_IN for scheme in find(driver).schemes)


@cache
def _entries() -> dict[str, list[EntryPoint]]:
    entries = {name: [EntryPoint(name, value, GROUP)] for name, value in BUILT_IN.items()}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        if entry.name not in BUILT_IN:
            entries.setdefault(entry.name, []).append(entry)
    return entries
