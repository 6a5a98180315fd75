"""ConfiguredDatasources: the datasources of a recovery manager, which may change while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from recovery.scan.datasources.datasources import RecoverableDatasource
from recovery.scan.datasources.names import by_name
from txpool.config.settings import DataSourceSettings
from txpool.datasource import Source, open_settings
from txpool.errors import ConfigurationError, ProgrammingError
from txpool.locks import Lock


class ConfiguredDatasources:
    """The datasources that were given, and those of files. Thread-safe. A pass takes `all` when it begins.

    It opens those of files itself, even if the application has them open, and closes them itself. One may be closed
    during a pass: recovery asks over connections of its own, and not over the pool's.
    """

    def __init__(self, given: Iterable[RecoverableDatasource], paths: Iterable[str | Path]) -> None:
        self._lock = Lock()
        self._opened: list[Source] = []
        #: Replaced as a whole.
        self.all: tuple[RecoverableDatasource, ...] = ()
        #: The names of those that were removed, and not added again.
        self._removed: set[str] = set()
        found = by_name([*given, *map(DataSourceSettings.load_without_idle, paths)]).values()
        # Those that were given are named last.
        for each in sorted(found, key=lambda one: not isinstance(one, DataSourceSettings)):
            self.all += (self._recoverable(each),)
        if not self.all:
            raise ConfigurationError(
                "recovery has no datasource: name the datasources' files, as in datasources = orders.properties"
            )

    def add(self, added: RecoverableDatasource | str | Path) -> None:
        """See `RecoveryManager.add_datasource`."""
        new = DataSourceSettings.load_without_idle(added) if isinstance(added, str | Path) else added
        with self._lock:
            by_name([new, *self.all])  # raises if another one has its name
            replaced = [each for each in self.all if each.name == new.name]
            self.all = (*(each for each in self.all if each.name != new.name), self._recoverable(new))
            self._removed.discard(new.name)
        self._close(each for each in replaced if each is not new)

    def remove(self, name: str) -> None:
        """See `RecoveryManager.remove_datasource`."""
        with self._lock:
            removed = [each for each in self.all if each.name == name]
            names = ", ".join(each.name for each in self.all)
            if not removed:
                raise ProgrammingError(f"recovery has no datasource {name}, and nothing was removed: it has {names}")
            if len(self.all) == 1:
                raise ProgrammingError(f"{name} is recovery's only datasource, and stays: close the manager instead")
            self.all = tuple(each for each in self.all if each.name != name)
            self._removed.add(name)
        self._close(removed)

    def was_removed(self, name: str) -> bool:
        """Whether the datasource of this name was removed, and not added again."""
        return name in self._removed

    def close(self) -> None:
        """Close those that were opened here."""
        self._close(self.all)

    def _recoverable(self, described: RecoverableDatasource | DataSourceSettings) -> RecoverableDatasource:
        if not isinstance(described, DataSourceSettings):
            return described
        datasource = open_settings(described)
        self._opened.append(datasource)
        return datasource

    def _close(self, datasources: Iterable[RecoverableDatasource]) -> None:
        ids = {id(each) for each in datasources}
        with self._lock:
            closed = [each for each in self._opened if id(each) in ids]
            self._opened = [each for each in self._opened if id(each) not in ids]
        for each in closed:
            each.close()
