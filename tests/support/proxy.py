"""A TCP proxy before PostgreSQL, MariaDB or MySQL that parses messages just enough to lose or delay one of them."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

_SSL, _GSS = 80877103, 80877104
_SO_ATTACH_FILTER = 26
_EXTENDED = frozenset({b"P", b"B", b"D", b"E", b"C"})


class NetworkFault(Enum):
    """What becomes of the message."""

    CUT_BEFORE = "cut before the server has it"
    CUT_AFTER = "cut after the server has executed it, its answer lost"
    DELAYED = "delivered late, and answered"
    BLACK_HOLE = "swallowed, and from then on every packet is lost, until `heal`"
    DEAF = "executed, and from then on every packet is lost, until `heal`"
    LATE = "the client is cut off; the server has it only at `deliver`"


class Proxy:
    """Listens on `port` of the loopback. `fail_at` arms it for the next message that contains some bytes."""

    def __init__(self, port: int, *, mysql: bool = False) -> None:
        self._server = port
        self._link: type[_Link] = _MySQLLink if mysql else _Link
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._armed: tuple[bytes, NetworkFault] | None = None
        #: Set once the fault has met a message, which was executed where the fault says so.
        self.failed = threading.Event()
        #: Whether a client learns of the end of the server's session before it sends again.
        self.tells_the_end = True
        self._dark = False
        self._delivery = threading.Event()
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def fail_at(self, needle: bytes, how: NetworkFault) -> None:
        """Do this to the next message that contains these bytes, whatever connection it comes by."""
        self.failed.clear()
        self._armed = (needle, how)

    def go_dark(self) -> None:
        """From now on every packet of every connection is lost, until `heal`."""
        self._dark = True
        for link in list(self._links):
            with suppress(OSError):  # it has ended
                link._go_dark()

    def deliver(self) -> None:
        """Let the server have the messages that are LATE; returns once it has executed them."""
        self._delivery.set()
        for link in list(self._links):
            if link.late:
                link.thread.join()

    def heal(self) -> None:
        """The network is whole again: connections that were in the dark are gone, new ones go through."""
        self._dark = False
        for link in list(self._links):
            if link.dark:
                link.close()

    def repair(self, how: NetworkFault) -> None:
        """The network is whole after such a fault, and whatever was on its way has arrived."""
        if how is NetworkFault.LATE:
            self.deliver()
        self.heal()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._delivery.set()
        for link in list(self._links):
            link.close()
            link.thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                link = self._link(self, client, self._server)
                self._links.append(link)
                link.thread.start()

    def aim(self, message: bytes) -> NetworkFault | None:
        """The fault for this message; each is used once."""
        with self._lock:
            if self._armed is None or self._armed[0] not in message:
                return None
            _, how = self._armed
            self._armed = None
            if how in (NetworkFault.BLACK_HOLE, NetworkFault.DEAF):
                self._dark = True
            return how


def drops_packets() -> bool:
    """Whether the kernel lets this user drop packets: else what is sent into the dark is acknowledged."""
    with socket.socket() as probe:
        try:
            _drop_all(probe)
        except PermissionError:
            return False
    return True


def _drop_all(side: socket.socket) -> None:
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    side.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(drop)))


class _Link:
    """One client's connection, and the one to the server that stands for it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: int) -> None:
        self._proxy = proxy
        self._client = client
        self._server = socket.create_connection(("127.0.0.1", server))
        for side in (self._client, self._server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.dark = self.late = False
        self.thread = threading.Thread(target=self._forth, name="proxy-link", daemon=True)
        #: Where the server's answers go; None where they are lost.
        self._listening: Callable[[bytes], object] | None = client.sendall
        self._ready = threading.Event()
        self._closed = threading.Event()
        self._asked = False  # the client waits for an answer
        self._over = False  # the server has closed it

    def _forth(self) -> None:
        """From the client to the server, message by message."""
        back = threading.Thread(target=self._back, name="proxy-answers", daemon=True)
        back.start()
        with suppress(OSError, EOFError):
            if self._proxy._dark:
                self._go_dark()
            self._startup()
            while True:
                self._pass_on(self._message())
        if self.dark:  # nobody learns that the client has gone
            self._closed.wait()
        self.close()
        back.join()

    def _startup(self) -> None:
        """The first message has no type; libpq may ask for encryption before it, and hears no."""
        while True:
            (length,) = struct.unpack("!i", head := self._read(4))
            body = self._read(length - 4)
            if self.dark:
                continue
            if struct.unpack("!i", body[:4])[0] not in (_SSL, _GSS):
                self._server.sendall(head + body)
                return
            self._client.sendall(b"N")

    def _message(self) -> bytes:
        message = b""
        while True:
            kind, head = self._read(1), self._read(4)
            message += kind + head + self._read(struct.unpack("!i", head)[0] - 4)
            if kind not in _EXTENDED:  # those of the extended protocol are answered as one, at their Sync
                return message

    def _answer(self) -> tuple[bytes, bool]:
        """Some of an answer, and whether it is the end (ReadyForQuery)."""
        head = exactly(self._server, 5)
        return head + exactly(self._server, struct.unpack("!i", head[1:])[0] - 4), head[:1] == b"Z"

    def _pass_on(self, message: bytes) -> None:
        if self.dark:
            return
        self._asked = True
        if self._over:
            raise EOFError
        how = self._proxy.aim(message)
        if how is None:
            self._server.sendall(message)
            return
        if how in (NetworkFault.CUT_AFTER, NetworkFault.DEAF, NetworkFault.LATE):
            self._listening = None
        if how is NetworkFault.LATE:
            self.late = True
            self._client.close()
            self._proxy.failed.set()
            self._proxy._delivery.wait()
        if how in (NetworkFault.BLACK_HOLE, NetworkFault.DEAF):
            self._go_dark()
        if how in (NetworkFault.CUT_AFTER, NetworkFault.DEAF, NetworkFault.LATE):
            self._ready.clear()
            self._server.sendall(message)
            self._ready.wait()
        elif how is NetworkFault.DELAYED:
            threading.Event().wait(0.3)
            self._server.sendall(message)
        self._proxy.failed.set()
        if how in (NetworkFault.CUT_BEFORE, NetworkFault.CUT_AFTER, NetworkFault.LATE):
            raise EOFError

    def _go_dark(self) -> None:
        """Let the kernel drop whatever comes from the client, unacknowledged, as a dead network does.

        Some kernels let only root say so. There, the link takes what comes, and throws it away.
        """
        self.dark = True
        with suppress(PermissionError):
            _drop_all(self._client)

    def _back(self) -> None:
        """From the server to the client; sees where an answer ends."""
        with suppress(OSError, EOFError):
            while True:
                answer, ended = self._answer()
                if self._listening is not None and not self.dark:
                    self._listening(answer)
                if ended:
                    self._asked = False
                    self._ready.set()
        self._ready.set()
        self._over = True
        if not self.dark and (self._proxy.tells_the_end or self._asked):
            self.close()

    def _read(self, count: int) -> bytes:
        return exactly(self._client, count)

    def close(self) -> None:
        self._closed.set()
        for side in (self._client, self._server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()


class _MySQLLink(_Link):
    """Of MariaDB and MySQL, without encryption: each packet has its length in three bytes, and a number."""

    def _startup(self) -> None:
        """Nothing: the server speaks first, and what the client says has the form of all else."""

    def _message(self) -> bytes:
        return _packet(self._client)

    def _answer(self) -> tuple[bytes, bool]:
        """A packet; one is the whole answer to a command that returns no rows, and to no other is a fault aimed."""
        return _packet(self._server), True


def _packet(source: socket.socket) -> bytes:
    head = exactly(source, 4)
    return head + exactly(source, int.from_bytes(head[:3], "little"))


def exactly(source: socket.socket, count: int) -> bytes:
    """So many bytes. EOFError if they do not come."""
    found = b""
    while len(found) < count:
        more = source.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return found
