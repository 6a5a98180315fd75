"""Asks the processes of a configuration: those that answer, those that do not in time, and those that refuse."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txpool.control import folder as folders
from txpool.control.messages import LONGEST_ANSWER, MessageError, Request, decoded, read_line
from txpool.errors import ConfigurationError

#: Seconds that a process has for its answer.
PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class ProcessReply:
    """What one process has said."""

    #: The process's id, as the kernel knows it; None if it could not be connected to.
    pid: int | None
    #: The numbers of its pools that the request was about, as PoolStatistics has them.
    pools: Sequence[dict[str, Any]] = ()
    #: What its pools refused, and why.
    failures: Sequence[str] = ()
    #: Why there is no answer, so that it is unknown whether the request was carried out; empty if there is one.
    unknown: str = ""


def ask(folder: Path, request: Request, timeout: float = PATIENCE, *, pid: int | None = None) -> list[ProcessReply]:
    """Every process's answer, or that of one. ConfigurationError if the folder is not safe."""
    folders.require_supported()
    try:
        owner = folder.stat().st_uid
    except FileNotFoundError:  # no process has made it yet
        return []
    except OSError as error:
        raise ConfigurationError(f"control.folder = {folder} cannot be looked at: {error.strerror}") from error
    ours = os.geteuid()
    reason = folders.why_not_safe(folder, owner if ours == 0 else ours)
    if reason is not None:
        raise ConfigurationError(f"control.folder = {folder} is not used: {reason}")
    paths = [path for path in folders.sockets(folder) if pid is None or path.name.startswith(f"{pid}-")]
    if not paths:
        return []
    with ThreadPoolExecutor(min(len(paths), 16)) as threads:
        answers = list(threads.map(lambda path: _ask(path, request, owner, timeout), paths))
    if None in answers and ours == owner:  # root changes nothing in a folder that another user could swap
        folders.remove_dead(folder)
    return [answer for answer in answers if answer is not None]


def _ask(path: Path, request: Request, owner: int, timeout: float) -> ProcessReply | None:
    """One process's answer; None if it has ended before it got the request."""
    pid = None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(path))
            pid, uid = folders.peer(connection)
            if uid not in {owner, 0}:
                return ProcessReply(pid, unknown=f"{path.name} is served by user {uid}, who is not asked")
            connection.sendall(request.encoded())
            found = decoded(read_line(connection, LONGEST_ANSWER, timeout))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except TimeoutError:
            name = path.name.partition("-")[0] if pid is None else pid
            return ProcessReply(
                pid, unknown=f"process {name} has not answered within {timeout:g} s, and may still do it"
            )
        except (OSError, EOFError, MessageError) as error:
            return ProcessReply(pid, unknown=f"process {pid or path.name} gave no answer: {error}")
    pools, failures = found.get("pools"), found.get("failures")
    if not isinstance(pools, list) or not isinstance(failures, list):
        return ProcessReply(pid, unknown=f"process {pid} has answered: {_printable(found.get('error', 'nothing'))}")
    good = [{str(key): _plain(value) for key, value in each.items()} for each in pools if isinstance(each, dict)]
    return ProcessReply(pid, good, [_printable(failure) for failure in failures])


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float) or value is None else _printable(value)


def _printable(text: object) -> str:
    """Without what a terminal would take for a command."""
    return "".join(character if character.isprintable() else " " for character in str(text))
