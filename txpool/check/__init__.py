"""`txpool check`: whether a file, and the datasource or the decision log behind it, serves its purpose.

It writes nothing that stays: a branch is prepared and rolled back, a table made and rolled back.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from txpool.check import log, marks, node, postgresql, prepared, sqlite, storage, trust
from txpool.check.connecting import NotConnected, connected
from txpool.check.finding import Finding, Report, Section, Severity, fine, section, warning, wrong
from txpool.check.server import asked
from txpool.config.keys import COORDINATOR_KEYS, RECOVERY_KEYS
from txpool.config.properties import Properties, SecurityWarning
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.errors import ConfigurationError, Error
from txpool.resources.drivers import make_driver

__all__ = ["Finding", "Report", "Section", "Severity", "check"]

# What whoever may connect can do, by the datasource's mode.
_OPEN = {
    "xa": "whoever connects sees the names of what is prepared, and can take slots and names, so that a transaction "
    "rolls back; he ends nothing of ours, and decides nothing",
    "cmr": "whoever connects can make tables and schemas where he may, before the right ones are there; they are "
    "refused then, and so are transactions",
}
_COORDINATION = frozenset(key.name for key in COORDINATOR_KEYS + RECOVERY_KEYS)


def check(path: Path, *, old: float = 600.0) -> Report:
    """Check a datasource's file, or a coordinator's or recovery's with all that it names. Raises nothing of its own.

    What has been prepared for longer than `old` (seconds) is a finding.
    """
    try:
        file = _File.read(path)
        if _COORDINATION.isdisjoint(file.properties):
            return Report((_datasource(file, old),))
        return Report(tuple(_coordination(file, old)))
    except ConfigurationError as error:
        return Report((section(str(path), [wrong("file", str(error))]),))


@dataclass(frozen=True, slots=True)
class _File:
    """A file that could be read, and what is to be said of it as a file."""

    path: Path
    properties: Properties
    said: tuple[Finding, ...]

    @classmethod
    def read(cls, path: Path) -> _File:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SecurityWarning)
            properties = Properties.load(path)
        if not properties:
            raise ConfigurationError(
                f"{path} holds no key: a datasource's file has driver and url, a coordinator's node.name and log.url"
            )
        said = [
            warning("file", str(note.message), "whoever reads it can do what that user can", f"chmod 600 {path}")
            for note in caught
            if issubclass(note.category, SecurityWarning)
        ]
        if storage.others_may_write(path):
            said.append(
                warning(
                    "file",
                    f"everybody on this machine may write {path}",
                    "whoever changes it sends transactions to another database",
                    f"chmod o-w {path}",
                )
            )
        return cls(path, properties, (*said, fine("file", f"{path} is well-formed")))


def _coordination(file: _File, old: float) -> Iterator[Section]:
    settings = RecoverySettings.load(file.properties)
    yield section(str(file.path), file.said)
    said = [*_whole(log.findings(settings)), *_whole(node.findings(settings))]
    yield section(f"decision log {settings.log_url or ''}", said, [settings.log_password])
    names: dict[str, Path] = {}
    for path in settings.datasources:
        try:
            yield _datasource(_File.read(path), old, settings.transaction_timeout, names)
        except ConfigurationError as error:
            yield section(str(path), [wrong("file", str(error))])


def _datasource(file: _File, old: float, timeout: float | None = None, names: dict[str, Path] | None = None) -> Section:
    """`names` are those that other files of the configuration have given."""
    settings = DataSourceSettings.load(file.properties)
    said = list(file.said)
    first = {} if names is None else names
    if first.setdefault(settings.name, file.path) != file.path:
        said.append(
            wrong(
                "file",
                f"{first[settings.name]} describes a datasource {settings.name} too",
                "recovery would take one for the other",
                "give each a name of its own: name = …",
            )
        )
    look = sqlite.findings(settings) if settings.driver == "sqlite3" else _on_server(settings, old, timeout)
    title = f"datasource {settings.name} (mode={settings.mode}): {settings.url}"
    return section(title, [*said, *_whole(look)], settings.secrets)


def _on_server(settings: DataSourceSettings, old: float, timeout: float | None) -> Iterator[Finding]:
    with connected(settings) as raw:
        server = asked(raw)
        yield from postgresql.findings(server, pool_size=settings.pool_max_size, timeout=timeout)
        if settings.mode == "xa":
            yield from prepared.findings(raw, server, settings, old)
        elif settings.mode == "cmr":
            yield from marks.findings(raw, settings)
        roles = make_driver(settings).roles
        if settings.mode in _OPEN:
            yield from trust.connect(raw, server, roles, _OPEN[settings.mode])
        yield from trust.spark(raw, roles)


def _whole(findings: Iterator[Finding]) -> Iterator[Finding]:
    """All of them, and what has ended them before their time as the last."""
    try:
        yield from findings
    except NotConnected as refusal:
        yield refusal.finding
    except ConfigurationError as error:
        yield wrong("file", str(error))
    except PermissionError as error:
        yield wrong(
            "permissions",
            f"{error.filename} may not be looked at by uid {os.geteuid()}",
            "the user of the service must own what it works with",
            "check again as that user, or chown it",
        )
    except (Error, psycopg.Error, OSError) as error:
        yield wrong("connection", f"the check ended early: {error}", do="correct what it complains of, and check again")
