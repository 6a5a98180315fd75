"""Ports on loopback, and who listens there."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def listens(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            # If nobody does, the system may choose that very port for this end: then it is connected with itself.
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False
