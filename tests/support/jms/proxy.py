"""A TCP proxy before Artemis: from a chosen packet on, the broker answers a connection nothing but pings.

So the client takes it to be alive, and its own look for dead connections ends no wait.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from enum import IntEnum

from tests.support.proxy import exactly


class Packet(IntEnum):
    """The type of a packet, which is its fifth byte."""

    PING = 10
    QUEUE_QUERY = 45
    CREATE_CONSUMER = 40
    XA_START = 51
    XA_END = 52
    XA_COMMIT = 53
    XA_PREPARE = 54
    XA_ROLLBACK = 56
    XA_LIST = 61
    XA_TIMEOUT = 63
    SEND = 71
    CLOSE_CONSUMER = 74
    FORCE_DELIVERY = 78
    CREATE_SESSION = 256 - 18


class StallingProxy:
    """Listens on `port` of the loopback. `stall_at` arms it for the next packet of a type."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        #: Set once a connection has stalled.
        self.stalled = threading.Event()
        self._armed: tuple[Packet, bool] | None = None
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    def stall_at(self, packet: Packet, *, delivered: bool) -> None:
        """Stall the next connection with such a packet, which the broker gets, or not."""
        self.stalled.clear()
        self._armed = packet, delivered

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                self._sockets += [client, server]
                dead = threading.Event()
                for given in ((client, server, True, dead), (server, client, False, dead)):
                    self._threads.append(threading.Thread(target=self._forward, args=given, daemon=True))
                    self._threads[-1].start()

    def _forward(self, source: socket.socket, target: socket.socket, from_client: bool, dead: threading.Event) -> None:
        with suppress(OSError, EOFError):
            if from_client:
                target.sendall(exactly(source, len(b"ARTEMIS")))
            while True:
                head = exactly(source, 5)
                packet = head + exactly(source, struct.unpack("!i", head[:4])[0] - 1)
                delivered = not dead.is_set() or head[4] == Packet.PING
                if from_client and delivered:
                    delivered = self._aim(head[4], dead)
                if delivered:
                    target.sendall(packet)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _aim(self, kind: int, dead: threading.Event) -> bool:
        """Whether the broker gets a packet of this type."""
        with self._lock:
            if self._armed is None or self._armed[0] != kind:
                return True
            (_, delivered), self._armed = self._armed, None
            dead.set()
            self.stalled.set()
            return delivered
