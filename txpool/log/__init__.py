"""The decision log: the durable record of which transactions commit, and the registry of incarnations.

`base` has the protocol, `sqlite`, `sql` and `memory` its stores. What a sql store says to its database is in that
database's folder, `txpool/resources/*/log`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from txpool.config.secrets import Secret
from txpool.errors import ConfigurationError, Error, LogError
from txpool.log.base import Decision, DecisionLog, Heuristic, IncarnationState, SideRecord
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.log.sql.server import LogServer, is_log_url, log_server
from txpool.log.sql.store import SqlLog
from txpool.log.sqlite.folder import LogFolder
from txpool.log.sqlite.store import SqliteLog
from txpool.resources.base import Refused, Resolution

__all__ = [
    "Decision",
    "DecisionLog",
    "Heuristic",
    "IncarnationState",
    "MemoryDisk",
    "MemoryLog",
    "Refused",
    "Resolution",
    "SideRecord",
    "SqlLog",
    "SqliteLog",
    "adopt_log",
    "folder_of",
    "open_log",
]


def open_log(
    url: str,
    *,
    node: str,
    create: bool = False,
    user: str | None = None,
    password: Secret | None = None,
    nodes: Collection[str] | None = None,
) -> DecisionLog:
    """Open the log that `log.url` names: ``sqlite:///folder``, ``postgresql://host/database``,
    ``mysql://host/database`` or ``memory:``.

    `user` and `password` are for a server. `nodes` are those whose incarnations a shared log reports: this node's own,
    unless others are listed, or all by "*". LogError if the log is missing (unless `create`), damaged, a copy, or
    another node's.
    """
    if url == "memory:":
        return MemoryLog(MemoryDisk(node), node=node)
    if is_log_url(url):
        return SqlLog(url, node=node, create=create, nodes=nodes, user=user, password=password)
    return SqliteLog(folder_of(url), node=node, create=create)


def create_log(url: str, *, node: str, user: str | None = None, password: Secret | None = None) -> bool:
    """Create the log that `log.url` names, and return True; False if it exists. LogError."""
    if url == "memory:":
        return True
    if is_log_url(url):
        server = log_server(url, user=user, password=password)
        with _as_log_error(server, "made"):
            return server.create()
    return LogFolder(folder_of(url)).create(node)


def adopt_log(url: str, *, node: str, user: str | None = None, password: Secret | None = None) -> None:
    """Accept a copied or moved log as this node's own, and leave all earlier branches of its nodes alone. LogError."""
    if is_log_url(url):
        server = log_server(url, user=user, password=password)
        with _as_log_error(server, "adopted"):
            server.adopt()
    else:
        LogFolder(folder_of(url)).adopt(node)


@contextmanager
def _as_log_error(server: LogServer, what: str) -> Iterator[None]:
    """Raise a driver's error, as of a wrong password, as a LogError."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        reason = server.describe(error)
        raise LogError(f"{server.name} could not be {what}: {reason}. Mend that, and do it again") from error


def folder_of(url: str) -> Path:
    """The folder of a sqlite log's url; ConfigurationError for any other url."""
    scheme, separator, path = url.partition(":///")
    if scheme != "sqlite" or not separator or not path:
        # The url is not shown, since one of an unknown form may have a password anywhere.
        raise ConfigurationError(
            "log.url cannot name a log: expected sqlite:///folder, postgresql://host/database, "
            "mysql://host/database, or memory: in tests"
        )
    return Path(path)
