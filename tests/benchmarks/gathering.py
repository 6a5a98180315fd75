"""A way to a server by which the answers to what a client sends together reach it together.

A client that reads while the server still writes reads in more parts, and each part costs instructions: how many there
are depends on the machine. By this way whatever the server sends is held until it has paused.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: So many seconds without a byte are a pause: a server in memory answers a statement in a tenth of it.
PAUSE = 0.003
_MOST = 1 << 16


@contextmanager
def gathering(port: int) -> Iterator[int]:
    """A port of the loopback that leads to this one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port), name="gathering", daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, port: int) -> None:
    with suppress(OSError):  # closed
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_carry, args=(client, server), name="gathering", daemon=True).start()


def _carry(client: socket.socket, server: socket.socket) -> None:
    """Carry bytes both ways, the server's in one piece for each of its pauses, until either side has ended."""
    held = bytearray()
    with client, server, suppress(OSError):
        while True:
            readable, _, _ = select.select([client, server], [], [], PAUSE if held else None)
            if client in readable:
                if not (sent := client.recv(_MOST)):
                    return
                server.sendall(sent)
            if server in readable:
                if not (answer := server.recv(_MOST)):
                    client.sendall(held)
                    return
                held += answer
            if not readable:
                client.sendall(held)
                held.clear()
