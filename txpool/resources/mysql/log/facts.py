"""The settings of a log's server, and why no log can be kept on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from txpool.resources.mysql.session import pooler
from txpool.resources.mysql.session.server import Server

if TYPE_CHECKING:
    from txpool.resources.mysql.session.state import MySQLRawConnection

_SETTINGS: Final = """SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@binlog_format, @@read_only"""
_FILE: Final = "and write it into the server's file"

#: What was found, why it matters, what to do.
WhyNot = tuple[str, str, str]
POOLER: Final[WhyNot] = (
    pooler.FOUND,
    "a process holds its lease in a session of its own; a pooler that shares sessions keeps the session after the "
    "process has died, and recovery would wait for ever",
    "let log.url lead to the server itself",
)


def settings_of(raw: MySQLRawConnection, until: float | None = None) -> Mapping[str, str]:
    """The server's settings that the log depends on, as text."""
    (row,) = raw.session.run(_SETTINGS, until)
    names = ("flush", "log_bin", "sync_binlog", "binlog_format", "read_only")
    return dict(zip(names, (str(as_text(value)) for value in row), strict=True))


def durability_of(settings: Mapping[str, str]) -> Iterator[WhyNot]:
    """Why what is committed may be lost."""
    if settings["flush"] != "1":
        yield (
            f"innodb_flush_log_at_trx_commit is {settings['flush']}",
            "a crash loses decisions that were confirmed, and then one database commits and another rolls back",
            f"SET GLOBAL innodb_flush_log_at_trx_commit = 1; {_FILE}",
        )
    if _is_on(settings["log_bin"]) and settings["sync_binlog"] != "1":
        yield (
            f"the server writes the binary log, and sync_binlog is {settings['sync_binlog']}",
            "after a crash it rolls back what is not in that log, also decisions that were confirmed",
            f"SET GLOBAL sync_binlog = 1; {_FILE}",
        )


def why_nots(server: Server, settings: Mapping[str, str]) -> Iterator[WhyNot]:
    """Why no log can be kept on this server."""
    if not server.direct:
        yield POOLER
    if server.galera:
        yield (
            "the server is a node of a Galera cluster (wsrep_on = ON)",
            "locks by GET_LOCK, and those of rows, hold on one node alone",
            "keep the log on a server of its own",
        )
    if _is_on(settings["read_only"]):
        yield "read_only is ON", "nothing can be written here", "let log.url lead to the primary server"
    yield from durability_of(settings)
    if _is_on(settings["log_bin"]) and settings["binlog_format"] == "STATEMENT":
        yield (
            "the server writes the binary log, and binlog_format is STATEMENT",
            "it then refuses what is written in READ COMMITTED",
            f"SET GLOBAL binlog_format = ROW; {_FILE}",
        )


def _is_on(value: str) -> bool:
    return value.upper() not in ("0", "OFF")


def as_text(value: Any) -> Any:
    """mysqlclient has bytes if a column's text compares by its bytes."""
    return value.decode() if isinstance(value, bytes) else value
