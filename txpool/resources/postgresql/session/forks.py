"""Connections in a forked child: they are the parent's, and nothing that the child does reaches the parent's socket.

A child may leave a block of copy(), pipeline() or stream() that was entered before the fork, or collect what was in
it. psycopg would then send the block's end, or cancel what the parent executes. So each connection's descriptor in the
child leads to a socket that nobody reads, and psycopg finds the connection closed.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import Any
from weakref import ref

import psycopg

from txpool.resources.postgresql.session.psycopg_private import ConnectionInSteps

# By the id of each connection of this process. Each step is one operation of a dict: there is no lock, which a fork
# could leave locked.
_opened: dict[int, ref[OneProcessConnection]] = {}


class OneProcessConnection(ConnectionInSteps):
    """A connection that a forked child finds closed."""

    #: This is a forked child, and the connection is its parent's.
    inherited = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        key = id(self)
        _opened[key] = ref(self, lambda _: _opened.pop(key, None))

    @property
    def closed(self) -> bool:
        """As psycopg's, and true in a forked child."""
        return self.inherited or super().closed


def _after_fork_in_child() -> None:
    inherited = [raw for each in list(_opened.values()) if (raw := each()) is not None]
    _opened.clear()
    for raw in inherited:
        raw.inherited = True
        raw.lock = threading.Lock()  # a thread that is not in this process may hold the former
    if inherited:
        nobody, nobodys_peer = socket.socketpair()
        nobodys_peer.close()
        with nobody:
            for raw in inherited:
                # libpq's own state stays as it is, since a thread of the parent's may be changing it.
                with suppress(psycopg.OperationalError):  # it is closed
                    os.dup2(nobody.fileno(), raw.pgconn.socket, inheritable=False)


os.register_at_fork(after_in_child=_after_fork_in_child)
