"""The findings of `txpool check` about the decision log. A missing log is never created."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from txpool.config.settings import CoordinatorSettings
from txpool.errors import LogError
from txpool.findings import storage
from txpool.findings.finding import Finding, NotConnected, failure, ok, warning
from txpool.log import IncarnationState, folder_of, open_log
from txpool.log.sql.server import is_log_url, log_server
from txpool.log.sqlite.owner import is_there

_INIT = "run `txpool-recovery init` once"
_EMPTY_LOG = "with an empty log, branches roll back that others of their transaction have committed"


def findings(settings: CoordinatorSettings) -> Iterator[Finding]:
    """Findings about the log of `log.url`."""
    node, url = settings.node_name, settings.log_url
    if node is None or url is None:
        key = "log.url" if url is None else "node.name"
        yield warning(
            "log",
            f"{key} is not configured",
            "a transaction over two databases is refused: its decision could not be stored",
            "write node.name = …, a name that never changes and no other coordinator has, and log.url = "
            "sqlite:///folder",
        )
        return
    if url == "memory:":
        yield failure(
            "log",
            "log.url = memory: is lost with the process",
            "after a crash nobody knows its decisions",
            "write log.url = sqlite:///folder, or a database",
        )
        return
    yield from _on_server(settings, url) if is_log_url(url) else _in_folder(settings, folder_of(url))


def _in_folder(settings: CoordinatorSettings, folder: Path) -> Iterator[Finding]:
    if not is_there(folder / "log.db") and settings.log_create and not is_there(folder):
        yield warning(
            "log",
            f"the log {folder} does not exist yet",
            "the first process would create it, since log.create = true",
            f"{_INIT}, and write log.create = false",
        )
        return
    if folder.is_dir():
        yield from _folder_permissions(folder)
        yield from storage.storage_findings("the log", folder)
    yield from _opened(settings)
    if settings.log_create and folder.is_dir():
        yield warning(
            "log",
            "log.create = true, and the log exists",
            f"if its disk is not mounted one day, a new log would be created in its place: {_EMPTY_LOG}",
            "write log.create = false",
        )


def _folder_permissions(folder: Path) -> Iterator[Finding]:
    mode = storage.mode_of(folder)
    if mode & 0o077:
        yield failure(
            "permissions",
            f"the log's folder {folder} has mode {mode:04o}",
            "other users than its owner may read or change decisions",
            f"chmod 700 {folder}",
        )
    if storage.owner_differs(folder):
        yield warning(
            "permissions",
            f"the log's folder {folder} belongs to uid {folder.stat().st_uid}, and this check runs as {os.geteuid()}",
            "coordinator and recovery must run as its owner",
            f"check again as that user, or chown -R {os.geteuid()} {folder}",
        )


def _opened(settings: CoordinatorSettings) -> Iterator[Finding]:
    """Open the log as recovery does, without an incarnation of its own, and count its entries."""
    node, url = settings.node_name or "", settings.log_url or ""
    try:
        log = open_log(url, node=node, user=settings.log_user, password=settings.log_password)
        try:
            decided, heuristics = log.decisions(), log.heuristics()
            living = sum(life is IncarnationState.ALIVE for life in log.incarnations().values())
        finally:
            log.close()
    except LogError as error:
        yield failure("log", str(error))
        return
    yield ok("log", f"the log of node {node} is right: {living} living processes, {len(decided)} decisions kept")
    if heuristics:
        yield warning(
            "heuristics",
            f"{len(heuristics)} heuristic outcomes are noted, the first of {heuristics[0].gtrid}",
            "a database has ended a branch against the decision: its data and the others' differ",
            "repair the data by hand; `txpool-recovery list` shows them, and `txpool-recovery forget GTRID` ends it",
        )


def _on_server(settings: CoordinatorSettings, url: str) -> Iterator[Finding]:
    try:
        yield from log_server(url, user=settings.log_user, password=settings.log_password).findings()
    except NotConnected as error:
        yield error.finding
    except LogError as error:
        yield failure("log", str(error))
    else:
        yield from _opened(settings)
