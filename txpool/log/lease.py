"""Who is alive, over many hosts: each incarnation holds an advisory lock of PostgreSQL while its process lives.

The lock belongs to the session of a connection of its own, which the server ends with its client: at once where the
process dies, by keep-alives where its host does. Through a pooler that shares sessions (PgBouncer's transaction mode)
it would outlive the process. As with all liveness, safety rests on the fence: a lease that was lost, by a restart of
the server or a cut, leads to a fence.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import psycopg

from txpool.errors import LogError
from txpool.log.server import LogConnection, LogServer
from txpool.resources.postgresql.libpq import Session

#: A parent's connections in a forked child, which must never close them: that would tell the server goodbye.
_inherited: list[LogConnection] = []


class Lease:
    """The lease of this process's own incarnation, taken before its name is published. Thread-safe."""

    def __init__(self, server: LogServer, node: str, name: str) -> None:
        self.name = name
        self._looking = threading.Lock()
        self._raw: LogConnection | None = None
        raw = self._raw = server.connect(f"txpool lease {node}")
        (taken,) = raw.execute("SELECT pg_try_advisory_lock(%s)", [key_of(name)]).fetchone() or (False,)
        if not taken:
            raise LogError(f"{server.name}: somebody else holds the lease of {name}, a name that was just invented")

    def held(self) -> bool:
        """Whether the connection has not been seen lost; waits for nothing, so a cut without a word goes unseen."""
        with self._looking:
            return self._raw is not None and Session(self._raw).is_alive()

    def release(self) -> None:
        """Let go, and return once anybody may take it."""
        with suppress(psycopg.Error):  # a lost connection holds no lock
            if self._raw is not None:
                # Left alone with a closed connection, the server would notice in its own time.
                self._raw.execute("SELECT pg_advisory_unlock_all()")
        self.close()

    def close(self) -> None:
        """Let go without waiting for the server to notice."""
        with self._looking:
            raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()

    def disown(self) -> None:
        """In a forked child: let go of this copy of the socket, or the parent's death would go unseen.

        Its number stays taken, so that libpq's idea of it can never touch another file.
        """
        self._looking = threading.Lock()
        raw, self._raw = self._raw, None
        if raw is not None:
            _inherited.append(raw)
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, raw.pgconn.socket, inheritable=False)
            os.close(nothing)

    def __del__(self) -> None:
        if self._raw is not None:
            self._raw.close()


def key_of(incarnation: str) -> int:
    """The advisory lock of an incarnation: its twelve characters are digits of base 36, and fit into a bigint."""
    return int(incarnation, 36)
