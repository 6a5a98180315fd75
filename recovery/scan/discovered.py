"""Datasources that recovery was not configured with: those of its own process, and those that the log has noted.

A noted file is opened only where nobody but its user or root could have written it, and used only where it leads to the
very database that was noted.
"""

from __future__ import annotations

import os
from contextlib import suppress

from recovery.scan.datasources import RecoverableDatasource
from txpool.config.ownership import why_not_trusted
from txpool.config.settings import DataSourceSettings
from txpool.datasource import DataSource, opened
from txpool.errors import ConfigurationError
from txpool.log.locations import LocationNote
from txpool.xid import tag_of


class DiscoveredDatasources:
    """Kept by one recovery manager from scan to scan. Used by one thread at a time."""

    def __init__(self) -> None:
        #: By path: what a file has looked like, and the datasource that it described then.
        self._files: dict[str, tuple[tuple[int, int, int], DataSource]] = {}

    def find(self, note: LocationNote) -> tuple[RecoverableDatasource, str]:
        """As Further has it."""
        own = [datasource for _, datasource in self._files.values()]
        for datasource in opened():
            if datasource.mode == "xa" and datasource not in own and _may_lead_to(datasource, note):
                with suppress(Exception):  # one that does not answer is not shown to lead there
                    if not _why_not_there(datasource, note):
                        return datasource, ""
        path = note.location.path
        if not path:
            raise ConfigurationError("it was configured in code, so no file can be opened for it")
        datasource = self._open(path)
        if datasource.mode != "xa":
            raise ConfigurationError(f"{path} has mode = {datasource.mode} now, which prepares nothing")
        why = _why_not_there(datasource, note)
        if why:
            raise ConfigurationError(f"{path} {why}")
        return datasource, path

    def marked(self, name: str) -> RecoverableDatasource | None:
        """As Further has it."""
        found = (each for each in opened() if each.mode == "cmr" and name in (each.name, tag_of(each.name)))
        return next(found, None)

    def close(self) -> None:
        """Close what was opened here."""
        for _, datasource in self._files.values():
            datasource.close()
        self._files.clear()

    def _open(self, path: str) -> DataSource:
        why = why_not_trusted(path)
        if why is not None:
            raise ConfigurationError(f"its file is not opened by itself: {why}")
        status = os.stat(path)
        looks = status.st_ino, status.st_mtime_ns, status.st_size
        known = self._files.get(path)
        if known is not None and known[0] == looks:
            return known[1]
        datasource = DataSource.from_settings(DataSourceSettings.load(path, pool_min_size=0))
        if known is not None:
            known[1].close()
        self._files[path] = looks, datasource
        return datasource


def _may_lead_to(datasource: DataSource, note: LocationNote) -> bool:
    return datasource.name == note.location.datasource or (
        bool(note.location.path) and datasource.settings.file == note.location.path
    )


def _why_not_there(datasource: DataSource, note: LocationNote) -> str:
    """Why a datasource cannot be shown to lead to the noted database; empty where it does. Asks the database."""
    if not note.location.identity:
        return "cannot be shown to lead there: the role that prepared was not told the server's identity"
    identity = datasource.resource_manager().identity()
    if identity == note.location.identity:
        return ""
    return f"leads elsewhere now: to {identity or 'a server that does not tell its identity'}"
