"""The decision log: the durable record of what commits, and the registry of who may decide."""

from __future__ import annotations

from pathlib import Path

from txpool.errors import ConfigurationError
from txpool.log.base import Decision, DecisionLog, Heuristic, Life
from txpool.log.folder import LogFolder
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.log.sqlite import SqliteLog
from txpool.resources.base import Refused, Settled

__all__ = [
    "Decision",
    "DecisionLog",
    "Heuristic",
    "Life",
    "MemoryDisk",
    "MemoryLog",
    "Refused",
    "Settled",
    "SqliteLog",
    "adopt_log",
    "folder_of",
    "open_log",
]


def open_log(url: str, *, node: str, create: bool = False) -> DecisionLog:
    """Open the log that `log.url` names: ``sqlite:///folder``, ``sqlite:////absolute/folder`` or ``memory:``.

    LogError where it is missing (unless `create`), damaged, a copy, or another node's.
    """
    if url == "memory:":
        return MemoryLog(MemoryDisk(node), node=node)
    return SqliteLog(folder_of(url), node=node, create=create)


def adopt_log(url: str, *, node: str) -> None:
    """Accept a copied or moved sqlite log as this node's own, and leave all its earlier branches alone."""
    LogFolder(folder_of(url)).adopt(node)


def folder_of(url: str) -> Path:
    """The folder of a sqlite log's url; ConfigurationError for any other url."""
    scheme, separator, path = url.partition(":///")
    if scheme != "sqlite" or not separator or not path:
        raise ConfigurationError(f"log.url = {url}: expected sqlite:///folder, or memory: in tests")
    return Path(path)
