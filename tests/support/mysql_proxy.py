"""A TCP proxy before MariaDB or MySQL that loses one message, or its answer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from enum import Enum


class Fault(Enum):
    """What becomes of the message."""

    CUT_BEFORE = "cut before the server has it"
    CUT_AFTER = "cut after the server has executed it, its answer lost"
    SILENT = "swallowed, and nothing passes on that connection any more, which stays open"


class MySQLProxy:
    """Listens on `port` of the loopback. `fail_at` arms it for the next message that contains some bytes."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._armed: tuple[bytes, Fault] | None = None
        self.failed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def lead_to(self, server: int) -> None:
        """Let the next connections lead to the server of this port, as a balancer does."""
        self._server = server

    def fail_at(self, needle: bytes, how: Fault) -> None:
        """Do this to the next message that contains these bytes, whatever connection it comes by."""
        self.failed.clear()
        self._armed = needle, how

    def close(self) -> None:
        self._closed = True
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                for side in (client, server):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                lost = threading.Event()
                self._start(self._forth, client, server, lost)
                self._start(self._back, client, server, lost)

    def _forth(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                armed = self._armed
                if armed is None or armed[0] not in data:
                    server.sendall(data)
                    continue
                self._armed = None
                lost.set()
                if armed[1] is Fault.SILENT:
                    self.failed.set()
                    continue
                if armed[1] is Fault.CUT_AFTER:
                    server.sendall(data)  # `_back` sees its answer, and closes
                    return
                self.failed.set()
                break
        self._end(client, server)

    def _back(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if lost.is_set():
                    self.failed.set()
                    break
                client.sendall(data)
        self._end(client, server)

    def _end(self, *sides: socket.socket) -> None:
        for side in sides:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
