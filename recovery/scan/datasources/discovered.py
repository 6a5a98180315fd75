"""DiscoveredDatasources: finds datasources that recovery was not configured with, by the log's notes.

A noted file is opened only if nobody but this process's user or root could have written it; a noted login is followed
only if recovery's own file allows it: see `noted`. Either is used only if it leads to the noted database.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from recovery.scan.datasources.datasources import RecoverableDatasource
from recovery.scan.datasources.names import is_called
from recovery.scan.datasources.noted import open_noted
from txpool.config.logins import AllowedLogin
from txpool.config.ownership import why_not_trusted
from txpool.config.settings import DataSourceSettings
from txpool.datasource import Source, open_settings, opened
from txpool.errors import ConfigurationError
from txpool.locks import Lock
from txpool.log.locations import LocationNote
from txpool.resources.base import Role


class DiscoveredDatasources:
    """The discovered datasources of one recovery manager, kept from scan to scan. Thread-safe.

    `allowed` are the logins of `recovery.noted`. What `was_removed` from the manager, by name, is not looked for.
    """

    def __init__(
        self, allowed: Sequence[AllowedLogin] = (), was_removed: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._allowed = allowed
        self._was_removed = was_removed
        #: By path: the inode, time and size of a file when it was read, and the datasource that it described.
        self._files: dict[str, tuple[tuple[int, int, int], Source]] = {}
        self._lock = Lock()

    def find(self, note: LocationNote) -> tuple[RecoverableDatasource, str]:
        """See `OtherDatasources.find`."""
        if self._was_removed(note.location.datasource):
            raise ConfigurationError("it was removed from this recovery manager (remove_datasource)")
        with self._lock:
            own = [datasource for _, datasource in self._files.values()]
        for datasource in opened():
            if datasource.role is Role.PREPARED and datasource not in own and _may_lead_to(datasource, note):
                with suppress(Exception):  # a datasource that does not answer cannot be shown to lead there
                    if not _why_not_there(datasource, note):
                        return datasource, ""
        path = note.location.path
        datasource = self._open(path) if path else open_noted(note, self._allowed)
        if datasource.role is not Role.PREPARED:
            raise ConfigurationError(f"{path} has mode = {datasource.mode} now, which prepares nothing")
        why = _why_not_there(datasource, note)
        if why:
            raise ConfigurationError(f"{path or 'the noted login'} {why}")
        return datasource, path

    def marked(self, name: str, notes: Iterable[LocationNote]) -> RecoverableDatasource | None:
        """See `OtherDatasources.marked`."""
        for each in opened():
            if each.role is Role.MARKED and is_called(name, each.name) and not self._was_removed(each.name):
                return each
        for note in notes:
            called, path = note.location.datasource, note.location.path
            if is_called(name, called) and not self._was_removed(called):
                datasource = self._open(path) if path else open_noted(note, self._allowed, Role.MARKED)
                if datasource.role is not Role.MARKED or datasource.name != called:
                    raise ConfigurationError(
                        f"{path} describes {datasource.name} with mode = {datasource.mode} now, and not the marked "
                        f"datasource {called}, which decides"
                    )
                return datasource
        return None

    def close(self) -> None:
        """Close the datasources that were opened here."""
        with self._lock:
            files, self._files = self._files, {}
        for _, datasource in files.values():
            datasource.close()

    def _open(self, path: str) -> Source:
        why = why_not_trusted(path)
        if why is not None:
            raise ConfigurationError(f"recovery does not open its file by itself: {why}")
        status = os.stat(path)
        version = status.st_ino, status.st_mtime_ns, status.st_size
        with self._lock:
            known = self._files.get(path)
            if known is not None and known[0] == version:
                return known[1]
            datasource = open_settings(DataSourceSettings.load_without_idle(path))
            self._files[path] = version, datasource
        if known is not None:
            known[1].close()
        return datasource


def _may_lead_to(datasource: Source, note: LocationNote) -> bool:
    return datasource.name == note.location.datasource or (
        bool(note.location.path) and datasource.settings.file == note.location.path
    )


def _why_not_there(datasource: Source, note: LocationNote) -> str:
    """Why a datasource cannot be shown to lead to the noted database; empty if it does. Asks the database."""
    if not note.location.identity:
        return "cannot be shown to lead there: the role that prepared was not told the server's identity"
    identity = datasource.branch_recovery().identity()
    if identity == note.location.identity:
        return ""
    return f"leads elsewhere now: to {identity or 'a server that does not tell its identity'}"
