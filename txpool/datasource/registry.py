"""The datasources of this process: those that are registered by a name, those of files, and all that are open.

Each step is one operation of a dict: there is no lock, which a fork could leave locked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from weakref import ref

from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from txpool.datasource.datasource import DataSource
    from txpool.datasource.source import Source

registered: dict[str, Source] = {}
#: By the absolute path of the datasource's file, by its connection string, or by its serialized settings.
by_key: dict[str, Source] = {}
#: Further folders for relative paths: in a Spark task, the driver's working directory.
search_folders: list[str] = []
#: Called, without arguments, whenever a pool has opened a connection; they never raise.
when_used: list[Callable[[], object]] = []
_opened: dict[int, ref[Source]] = {}
#: By its id: under which keys a datasource may stand there. They are noted before.
_keys: dict[int, dict[str, None]] = {}


def register(datasource: DataSource) -> DataSource:
    """Let connect() find a datasource by its name; returns it. ConfigurationError if another has that name."""
    add(datasource)
    return datasource


def add(datasource: Source) -> None:
    """As `register`, of any kind."""
    _note_key(datasource, datasource.name)
    other = registered.setdefault(datasource.name, datasource)
    if other is not datasource:
        raise ConfigurationError(f"another datasource is registered as {datasource.name}: {other!r}. Close it first.")


def shared(key: str, make: Callable[[], Source]) -> Source:
    """The datasource of that key, which is made if there is none."""
    datasource = by_key.get(key)
    if datasource is None:
        made = make()
        _note_key(made, key)
        datasource = by_key.setdefault(key, made)
        if datasource is not made:  # another thread was faster
            made.close()
    return datasource


def note_opened(datasource: Source) -> None:
    """A datasource was made: `opened` has it until it is closed or collected."""
    key = id(datasource)
    _opened[key] = ref(datasource, lambda _: _opened.pop(key, None))


def note_used() -> None:
    """A pool has opened a connection."""
    for call in when_used:
        call()


def unregister(datasource: Source) -> None:
    """The datasource is closed: nobody finds it any more."""
    for key in list(_keys.get(id(datasource), ())):
        for found in (registered, by_key):
            if found.get(key) is datasource:
                found.pop(key, None)
    _keys.pop(id(datasource), None)  # last: after an interrupt, the next call goes on
    _opened.pop(id(datasource), None)


def _note_key(datasource: Source, key: str) -> None:
    _keys.setdefault(id(datasource), {})[key] = None


def opened() -> list[Source]:
    """All datasources that this process has opened and not closed."""
    return [datasource for each in list(_opened.values()) if (datasource := each()) is not None]


def known() -> dict[str, Source]:
    """The datasources that find() needs no file for, by their registered names and by the paths of their files."""
    of_files = {key if os.path.isabs(key) else it.name: it for key, it in list(by_key.items())}
    return of_files | registered


def install_received(datasources: Mapping[str, Source], folder: str) -> None:
    """Let find() know datasources received from another process, by the names and paths that they have there.

    `folder` is that process's working directory: find() tries it for relative paths that do not exist here.
    """
    for key, datasource in datasources.items():
        _note_key(datasource, key)
        (by_key if os.path.isabs(key) else registered)[key] = datasource
    search_folders[:] = [folder]
