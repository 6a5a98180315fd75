"""`txpool check`: checks a configuration file, and the datasources and the decision log that it describes.

It leaves nothing behind: a branch is prepared and rolled back, and a table is created and rolled back.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import cast

from txpool.check import log, node
from txpool.config.keys import COORDINATOR_KEYS, RECOVERY_KEYS
from txpool.config.properties import Properties, SecurityWarning
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.errors import ConfigurationError, Error, translated
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
from txpool.resource_managers import find_resource_manager
from txpool.resources.deadlines import step_until
from txpool.resources.driver.making import not_installed
from txpool.resources.manager import ResourceManager

__all__ = ["CheckReport", "Finding", "Section", "Severity", "check"]

_A_READER = "a reader of it can do what that user can"
#: How long a datasource has to answer whose file is checked without recovery's, in seconds.
_STEP_SECONDS = 30.0
_COORDINATION = frozenset(key.name for key in COORDINATOR_KEYS + RECOVERY_KEYS)


def check(path: Path, *, old: float = 600.0) -> CheckReport:
    """Check a datasource's file, or a coordinator's or recovery's with its log and datasources. Problems are findings.

    A branch that has been prepared for longer than `old` (seconds) is a finding.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)  # each is a finding
        try:
            file = _CheckedFile.read(path)
            if _COORDINATION.isdisjoint(file.properties):
                return CheckReport((_datasource(file, old),))
            return CheckReport(tuple(_coordination(file, old)))
        except ConfigurationError as error:
            return CheckReport((section(str(path), _about_file(error)),))


@dataclass(frozen=True, slots=True)
class _CheckedFile:
    """A file that could be read, and the findings about the file itself."""

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
        findings = _others_read(caught)
        if storage.others_may_write(path):
            findings.append(
                warning(
                    "file",
                    f"everybody on this machine may write {path}",
                    "a changed url would lead transactions to another database",
                    f"chmod o-w {path}",
                )
            )
        return cls(path, properties, (*findings, ok("file", f"{path} is well-formed")))


def _coordination(file: _CheckedFile, old: float) -> Iterator[Section]:
    settings = RecoverySettings.load(file.properties)
    yield section(str(file.path), file.findings)
    step = settings.recovery_step_timeout
    findings = [*_with_ending_error(log.findings(settings)), *_with_ending_error(node.findings(settings, step=step))]
    yield section(f"decision log {settings.log_url or ''}", findings, [settings.log_password])
    names: dict[str, Path] = {}
    for path in settings.datasources:
        try:
            read = _CheckedFile.read(path)
            yield _datasource(read, old, settings.transaction_timeout, names, step=step, recovery=settings)
        except ConfigurationError as error:
            yield section(str(path), _about_file(error))


def _datasource(
    file: _CheckedFile,
    old: float,
    timeout: float | None = None,
    names: dict[str, Path] | None = None,
    *,
    step: float = _STEP_SECONDS,
    recovery: RecoverySettings | None = None,
) -> Section:
    """The section of one datasource; `names` has the datasources of the files before, by name.

    `step` is how long its database has to answer, in seconds; `recovery`, by what it is recovered.
    """
    settings = DataSourceSettings.load(file.properties)
    findings = list(file.findings)
    first = {} if names is None else names
    if first.setdefault(settings.name, file.path) != file.path:
        findings.append(
            failure(
                "file",
                f"{first[settings.name]} describes a datasource {settings.name} too",
                "recovery would take one for the other",
                "give each a name of its own: name = …",
            )
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SecurityWarning)
        with step_until(monotonic() + step):
            of_database = list(_with_ending_error(_of_database(settings, old, timeout, recovery)))
    findings += _others_read(caught)
    title = f"datasource {settings.name} (mode={settings.mode}): {settings.url}"
    return section(title, [*findings, *of_database], settings.secrets)


def _others_read(caught: Iterable[warnings.WarningMessage]) -> list[Finding]:
    """A finding for each warning of a secret that others can read: what it is, and behind the last colon what to do."""
    messages = dict.fromkeys(str(note.message) for note in caught if issubclass(note.category, SecurityWarning))
    parted = (message.rpartition(": ") for message in messages)
    return [warning("file", found, _A_READER, advice) for found, _, advice in parted]


def _of_interval(interval: float, ends_after: float) -> Finding:
    """Whether recovery comes before a server ends a prepared branch by itself: a third of that is the transaction's."""
    left = ends_after - ends_after / 3
    found = f"recovery comes within {interval:g} s (recovery.period and recovery.backoff), and has {left:g} s"
    if interval < left:
        return ok("recovery", f"{found} before the server ends by itself what is decided")
    why = f"the server ends a prepared branch after {ends_after:g} s by itself, also one that is decided to commit"
    return failure("recovery", found, why, "shorten recovery.period, or raise the server's timeout")


def _of_alarm(alarm: float | None, removed_after: float) -> Finding:
    """Whether a person hears of what is in doubt well before other programs may remove its files."""
    found = (
        "no alarm is raised for what is in doubt" if alarm is None else f"an alarm is raised after {alarm:g} s in doubt"
    )
    spared = f"other programs' removal of orphans may spare its files for no longer than {removed_after:g} s"
    if alarm is not None and alarm <= removed_after / 2:
        return ok("recovery", f"{found} (alarm.in-doubt), and {spared}")
    why = f"{spared}, and what is decided to commit then names files that are gone"
    return warning("recovery", f"{found} (alarm.in-doubt)", why, f"write alarm.in-doubt = {removed_after / 24:g}s")


def _of_database(
    settings: DataSourceSettings, old: float, timeout: float | None, recovery: RecoverySettings | None
) -> Iterator[Finding]:
    try:
        manager = cast("ResourceManager", find_resource_manager(settings.driver))
        yield from manager.findings(settings, stale_after=old, timeout=timeout)
        if recovery is None:
            return
        ends_after = manager.ends_after(settings)
        if ends_after is not None:
            yield _of_interval(recovery.recovery_period + recovery.recovery_backoff, ends_after)
        if manager.orphaned_after is not None:
            yield _of_alarm(recovery.alarm_in_doubt, manager.orphaned_after)
    except ModuleNotFoundError as error:
        raise not_installed(settings, error) from error


def _about_file(error: ConfigurationError) -> Iterator[Finding]:
    """A finding for each line: an error tells of all keys that are unknown."""
    return (failure("file", line) for line in str(error).splitlines() or [type(error).__name__])


def _with_ending_error(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings, and one more for an error that ends them early."""
    try:
        with translated():
            yield from findings
    except NotConnected as error:
        yield error.finding
    except ConfigurationError as error:
        yield from _about_file(error)
    except PermissionError as error:
        yield failure(
            "permissions",
            f"uid {os.geteuid()} may not read {error.filename}",
            "the user of the service must own its files",
            "check again as that user, or chown it",
        )
    except (Error, OSError) as error:
        yield failure(
            "connection", f"the check ended early: {error}", do="correct what the message complains of, and check again"
        )
