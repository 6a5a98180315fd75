"""Leases: over many hosts, an incarnation is alive while a session of its process holds a lock of the log's server.

The lock belongs to the session of a connection of its own, which the server ends with its client: at once if the
process dies, by keep-alives if its host does. Through a pooler that shares sessions (PgBouncer's transaction mode)
the lock would outlive the process. Safety rests on the fence: a lease that is lost, by a restart of the server or a cut
connection, leads to a fence.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from txpool.errors import LogError
from txpool.locks import Lock
from txpool.log.sql.server import LogServer
from txpool.xid import gtrid_prefix

#: The parent's connections in a forked child, which must never close them: that would end the parent's session.
_inherited: list[Any] = []


class Lease:
    """The lease of this process's own incarnation, taken before its name is published. Thread-safe."""

    def __init__(self, server: LogServer, node: str, name: str) -> None:
        self.name = name
        #: What the gtrids that the incarnation gives begin with.
        self.prefix = gtrid_prefix(node, name)
        self._server = server
        self._lock = Lock()
        self._raw: Any = None
        raw = self._raw = server.connect(f"txpool lease {node}")
        row = server.take_lease(raw, name)
        if row is None:
            raise LogError(f"{server.name}: another session holds the lease of {name}, a name that was just made")
        #: What the registry says of it.
        self.row: dict[str, object] = row

    def held(self) -> bool:
        """Whether the connection is not known to be lost. Does not wait, so a silent cut is not noticed."""
        with self._lock:
            return self._raw is not None and bool(self._raw.session.is_alive())

    def release(self) -> None:
        """Release the lock, and return once it is free."""
        with suppress(*self._server.errors):  # a lost connection holds no lock
            if self._raw is not None:
                # Without this, the server frees the lock only when it notices that the connection was closed.
                self._server.release_lease(self._raw)
        self.close()

    def close(self) -> None:
        """Close the connection, without waiting for the server to free the lock."""
        with self._lock:
            raw, self._raw = self._raw, None
        if raw is not None:
            self._server.close(raw)

    def disown(self) -> None:
        """In a forked child: close this copy of the socket, or the server would not notice the parent's death."""
        self._lock = Lock()
        raw, self._raw = self._raw, None
        if raw is not None:
            _inherited.append(raw)
            self._server.disown(raw)

    def __del__(self) -> None:
        if self._raw is not None:
            self._server.close(self._raw)
