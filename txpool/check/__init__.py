"""`txpool check`: whether a file, and the datasource or the decision log behind it, serves its purpose.

It writes nothing that stays: a branch is prepared and rolled back, a table made and rolled back.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from txpool.check import log, node
from txpool.config.keys import COORDINATOR_KEYS, RECOVERY_KEYS
from txpool.config.properties import Properties, SecurityWarning
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.errors import ConfigurationError, Error
from txpool.findings import storage
from txpool.findings.finding import (
    CheckReport,
    Finding,
    NotConnected,
    Section,
    Severity,
    failure,
    ok,
    section,
    warning,
)
from txpool.resource_managers import find

__all__ = ["CheckReport", "Finding", "Section", "Severity", "check"]

_COORDINATION = frozenset(key.name for key in COORDINATOR_KEYS + RECOVERY_KEYS)


def check(path: Path, *, old: float = 600.0) -> CheckReport:
    """Check a datasource's file, or a coordinator's or recovery's with all that it names. Raises nothing of its own.

    What has been prepared for longer than `old` (seconds) is a finding.
    """
    try:
        file = _CheckedFile.read(path)
        if _COORDINATION.isdisjoint(file.properties):
            return CheckReport((_datasource(file, old),))
        return CheckReport(tuple(_coordination(file, old)))
    except ConfigurationError as error:
        return CheckReport((section(str(path), [failure("file", str(error))]),))


@dataclass(frozen=True, slots=True)
class _CheckedFile:
    """A file that could be read, and what is to be said of it as a file."""

    path: Path
    properties: Properties
    findings: tuple[Finding, ...]

    @classmethod
    def read(cls, path: Path) -> _CheckedFile:
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
        return cls(path, properties, (*said, ok("file", f"{path} is well-formed")))


def _coordination(file: _CheckedFile, old: float) -> Iterator[Section]:
    settings = RecoverySettings.load(file.properties)
    yield section(str(file.path), file.findings)
    said = [*_with_ending_error(log.findings(settings)), *_with_ending_error(node.findings(settings))]
    yield section(f"decision log {settings.log_url or ''}", said, [settings.log_password])
    names: dict[str, Path] = {}
    for path in settings.datasources:
        try:
            yield _datasource(_CheckedFile.read(path), old, settings.transaction_timeout, names)
        except ConfigurationError as error:
            yield section(str(path), [failure("file", str(error))])


def _datasource(
    file: _CheckedFile, old: float, timeout: float | None = None, names: dict[str, Path] | None = None
) -> Section:
    """`names` are those that other files of the configuration have given."""
    settings = DataSourceSettings.load(file.properties)
    said = list(file.findings)
    first = {} if names is None else names
    if first.setdefault(settings.name, file.path) != file.path:
        said.append(
            failure(
                "file",
                f"{first[settings.name]} describes a datasource {settings.name} too",
                "recovery would take one for the other",
                "give each a name of its own: name = …",
            )
        )
    look = find(settings.driver).findings(settings, stale_after=old, timeout=timeout)
    title = f"datasource {settings.name} (mode={settings.mode}): {settings.url}"
    return section(title, [*said, *_with_ending_error(look)], settings.secrets)


def _with_ending_error(findings: Iterator[Finding]) -> Iterator[Finding]:
    """All of them, and what has ended them before their time as the last."""
    try:
        yield from findings
    except NotConnected as refusal:
        yield refusal.finding
    except ConfigurationError as error:
        yield failure("file", str(error))
    except PermissionError as error:
        yield failure(
            "permissions",
            f"{error.filename} may not be looked at by uid {os.geteuid()}",
            "the user of the service must own what it works with",
            "check again as that user, or chown it",
        )
    except (Error, OSError) as error:
        yield failure(
            "connection", f"the check ended early: {error}", do="correct what it complains of, and check again"
        )
