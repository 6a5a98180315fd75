"""The TCP connections of a process on Linux, and who holds their other ends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: A connection by its ports: the own one, and the other end's.
Connection = tuple[int, int]


def connections_of(pid: int) -> set[Connection]:
    """The connections that a process has open."""
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor)):
                own.add(found[1])
    return {connection for connection, inode in _sockets(pid) if inode in own}


def other_ends(connections: set[Connection]) -> set[Connection]:
    """The ends on this machine, of these connections, that a process still has open."""
    return {(own, other) for (own, other), inode in _sockets("self") if inode != "0" and (other, own) in connections}


def _sockets(pid: int | str) -> Iterator[tuple[Connection, str]]:
    """Each TCP socket in the network of a process, with its inode: 0 once nobody has it open."""
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), Path(f"/proc/{pid}/net/{table}").open() as lines:
            next(lines)
            for line in lines:
                words = line.split()
                own, other = (int(each.rpartition(":")[2], 16) for each in words[1:3])
                yield (own, other), words[9]
