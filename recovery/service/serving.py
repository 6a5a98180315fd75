"""RequestServer: answers short requests over TCP in one thread, with bounded connections, seconds and bytes.

A request is answered as soon as its head has arrived, and its connection is closed. A new connection is accepted and
read at once even if the limit is reached. If there is one connection too many after that, one is dropped: an answered
one that its client keeps open, or else the oldest. So a client that sends its request as it connects is answered,
whatever others hold open, and all clients together cost recovery a fixed number of file descriptors and one thread.
"""

from __future__ import annotations

import logging
import re
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus

from txpool.config.address import Address

logger = logging.getLogger("txpool.recovery.status")

#: Makes the parts of a reply from a request's head; the second argument is given if the request is refused.
Respond = Callable[[bytes, HTTPStatus | None], Iterable[bytes]]

_BLANK_LINE = re.compile(rb"\n\r?\n")
_RECEIVE_BYTES = 1 << 16
#: Connections that the kernel queues before they are accepted, at no descriptor. A client that finds the queue full
#: tries again a second later, so the queue is long.
_BACKLOG = 256
#: Connections accepted in one step: fewer than the limit of connections, so that open ones are served in between.
_ACCEPTS_PER_STEP = 16
#: Seconds without accepting after an accept has failed.
_ACCEPT_PAUSE_SECONDS = 0.5
#: Seconds that `close` waits for the thread, which may be making a reply.
_CLOSE_SECONDS = 5.0
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for clients."""

    #: Connections at a time; one more while it is accepted.
    connections: int = 64
    #: Seconds that a connection may last, with request and reply.
    seconds: float = 10.0
    #: Bytes of a request's head.
    head: int = 1 << 15
    #: Bytes after the head that are read and thrown away, so that the client comes to read its reply.
    rest: int = 1 << 20


class RequestServer:
    """Answers requests at an address until it is closed. Errors: OSError, RuntimeError if it cannot start."""

    def __init__(self, address: Address, respond: Respond, limits: Limits) -> None:
        self._respond, self._limits = respond, limits
        #: Oldest first, which is also the order of their deadlines.
        self._open: dict[socket.socket, _ClientConnection] = {}
        self._accept_again_at: float | None = None
        with ExitStack() as resources:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            self._listener = resources.enter_context(socket.socket(family, socket.SOCK_STREAM))
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.setblocking(False)
            self._listener.bind((address.host, address.port))
            self._listener.listen(_BACKLOG)
            host, port = self._listener.getsockname()[:2]
            self.address = Address(str(host), port)
            # Made now, since `close` must work when no descriptor is left.
            self._stop_signal, self._send_stop = map(resources.enter_context, socket.socketpair())
            self._selector = resources.enter_context(selectors.DefaultSelector())
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._selector.register(self._stop_signal, selectors.EVENT_READ)
            self._resources = resources.pop_all()
        self._thread = threading.Thread(target=self._run, name="txpool-status", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._resources.close()
            raise

    def close(self) -> None:
        """Stop. A reply in progress may be cut off. A second call does nothing."""
        self._send_stop.close()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except Exception:
            logger.exception("the status page has failed; recovery goes on without it")
        finally:
            for connection in list(self._open.values()):
                self._drop(connection)
            self._resources.close()

    def _step(self) -> bool:
        """Wait for events and handle them. Returns False if the server is to end."""
        ready = {key.fileobj for key, _ in self._selector.select(self._select_timeout())}
        if self._stop_signal in ready:
            return False
        for connection in [found for sock, found in self._open.items() if sock in ready]:
            self._advance(connection)
        now = time.monotonic()
        for connection in [found for found in self._open.values() if found.deadline <= now]:
            self._drop(connection)
        if self._accept_again_at is not None and self._accept_again_at <= now:
            self._accept_again_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        if self._listener in ready:
            self._accept()
        return True

    def _select_timeout(self) -> float | None:
        ends = [connection.deadline for connection in self._open.values()][:1]
        if self._accept_again_at is not None:
            ends.append(self._accept_again_at)
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_STEP):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                self._accept_failed(error)
                return
            sock.setblocking(False)
            connection = _ClientConnection(sock, self._respond, self._limits)
            self._open[sock] = connection
            self._advance(connection)
            if len(self._open) > self._limits.connections:
                self._drop_one()

    def _accept_failed(self, error: OSError) -> None:
        """No descriptor or no memory is left: drop a connection, or else stop accepting for a while."""
        if self._open:
            self._drop_one()
            return
        logger.debug("no connection can be accepted: %s", error)
        self._selector.unregister(self._listener)
        self._accept_again_at = time.monotonic() + _ACCEPT_PAUSE_SECONDS

    def _drop_one(self) -> None:
        found = list(self._open.values())
        self._drop(next((connection for connection in found if connection.answered), found[0]))

    def _advance(self, connection: _ClientConnection) -> None:
        waited_for = connection.waits_for
        try:
            over = not connection.advance()
            if not over and connection.waits_for != waited_for:
                self._watch(connection)
        except Exception as error:  # the socket's error, or no memory
            logger.debug("a connection was cut off", exc_info=error)
            over = True
        if over:
            self._drop(connection)

    def _watch(self, connection: _ClientConnection) -> None:
        if connection.sock in self._selector.get_map():
            self._selector.modify(connection.sock, connection.waits_for)
        else:
            self._selector.register(connection.sock, connection.waits_for)

    def _drop(self, connection: _ClientConnection) -> None:
        del self._open[connection.sock]
        with suppress(KeyError):
            self._selector.unregister(connection.sock)
        connection.close()


class _ClientConnection:
    """The connection of one client: one request, and its reply."""

    __slots__ = ("_head", "_limits", "_read", "_reply", "_respond", "answered", "deadline", "sock", "waits_for")

    def __init__(self, sock: socket.socket, respond: Respond, limits: Limits) -> None:
        self.sock = sock
        self.deadline = time.monotonic() + limits.seconds
        #: Whether the kernel has the whole reply, and only the client's end of the connection is missing.
        self.answered = False
        #: The selector's event; 0 before `advance` has been called.
        self.waits_for = 0
        self._respond, self._limits = respond, limits
        self._head = bytearray()
        self._read = 0
        self._reply: list[memoryview] = []

    def advance(self) -> bool:
        """Read and write as far as possible without waiting. Returns whether the connection goes on."""
        try:
            while not self._reply and not self.answered:
                self.waits_for = selectors.EVENT_READ
                if not self._receive():
                    return False
            while self._reply:
                self.waits_for = selectors.EVENT_WRITE
                self._send()
            self.waits_for = selectors.EVENT_READ
            # If the socket were closed with unread bytes, the client would lose the reply.
            while (data := self.sock.recv(_RECEIVE_BYTES)) and self._read <= self._limits.head + self._limits.rest:
                self._read += len(data)
        except BlockingIOError:
            return True
        return False

    def _receive(self) -> bool:
        """Receive bytes. Returns whether they lead to a reply, now or later."""
        data = self.sock.recv(_RECEIVE_BYTES)
        self._read += len(data)
        received = data if self._head else data.lstrip(b"\r\n")  # empty lines may precede a request
        searched = len(self._head)
        self._head += received
        end = _BLANK_LINE.search(self._head, max(0, searched - 2))
        if (self._read if end is None else end.end()) > self._limits.head:
            return self._answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if end is not None:
            del self._head[end.end() :]
            return self._answer(None)
        return bool(data) or (bool(self._head) and self._answer(HTTPStatus.BAD_REQUEST))

    def _answer(self, refused: HTTPStatus | None) -> bool:
        parts = self._respond(bytes(self._head), refused)
        self._reply = [memoryview(part) for part in parts if part]
        self._head.clear()
        return bool(self._reply)

    def _send(self) -> None:
        part = self._reply[0]
        sent = self.sock.send(part)
        if sent < len(part):
            self._reply[0] = part[sent:]
            return
        del self._reply[0]
        if not self._reply:
            self.sock.shutdown(socket.SHUT_WR)
            self.answered = True

    def close(self) -> None:
        """Close the connection. The kernel drops the rest of a reply that the client has not taken."""
        with suppress(OSError):
            if self._reply:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()
