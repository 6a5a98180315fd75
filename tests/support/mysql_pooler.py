"""A pooler before MariaDB or MySQL that works as the real ones do, over the wire.

It greets each client itself, with a number of its own, and has sessions of its own with the server. `MULTIPLEXING`
gives a client a session for as long as the server's status says that a transaction is open, and else for one command;
autocommit goes with the client, as in ProxySQL. `PINNED` gives a client one session for as long as it is connected.
To `select connection_id()`, in these words alone, it gives the client's number, as ProxySQL does.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from hashlib import sha1
from itertools import chain, count
from typing import Any, Final

from pymysql.constants import CLIENT, COMMAND, SERVER_STATUS

from tests.support.mysql import MySQLServer

_AUTOCOMMIT: Final[int] = SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT
_UTF8MB4: Final = 45
_PLUGIN: Final = b"mysql_native_password"
_CAPABILITIES: Final = (
    CLIENT.LONG_PASSWORD
    | CLIENT.LONG_FLAG
    | CLIENT.CONNECT_WITH_DB
    | CLIENT.PROTOCOL_41
    | CLIENT.TRANSACTIONS
    | CLIENT.SECURE_CONNECTION
    | CLIENT.MULTI_STATEMENTS
    | CLIENT.MULTI_RESULTS
    | CLIENT.PLUGIN_AUTH
)
_OK: Final = struct.pack("<BBBHH", 0, 0, 0, _AUTOCOMMIT, 0)
_DENIED: Final = b"\xff" + struct.pack("<H", 1045) + b"#28000Access denied by the pooler"
_OWN_NUMBER: Final = b"\x03select connection_id()"
_EOF, _ERROR = 0xFE, 0xFF
_LONGEST_EOF: Final = 8
#: Sessions with the server for each database, if the pooler multiplexes.
_SESSIONS: Final = 3
#: Far from the numbers of the server's sessions.
_FIRST_CLIENT: Final = 5_000_000


class Pooling(Enum):
    """For how long a client keeps a session with the server."""

    MULTIPLEXING = "while a transaction is open"
    PINNED = "while it is connected"


class MySQLPooler:
    """Listens on `port` of the loopback, for the server's administrator alone."""

    def __init__(self, server: MySQLServer, pooling: Pooling) -> None:
        self.server = server
        self.pooling = pooling
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._numbers: Iterator[int] = count(_FIRST_CLIENT)
        self._changed = threading.Condition()
        self._free: dict[str, deque[_ServerSession]] = {}
        self._open: set[_ServerSession | _Client] = set()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def url(self, database: str) -> str:
        return f"mysql://{self.server.user}@127.0.0.1:{self.port}/{database}"

    def number_next(self, number: int) -> None:
        """Let the next client have this number."""
        self._numbers = chain([number], self._numbers)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            ends = [*self._open]
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in ends:
            each.end()
        for thread in self._threads:
            thread.join()

    def take(self, database: str) -> _ServerSession:
        """The session that has been free for longest."""
        if self.pooling is Pooling.PINNED:
            return self._opened(database)
        with self._changed:
            if database not in self._free:
                self._free[database] = deque(self._opened(database) for _ in range(_SESSIONS))
            while not self._free[database]:
                assert not self._closed
                self._changed.wait()
            return self._free[database].popleft()

    def give_back(self, session: _ServerSession, *, whole: bool) -> None:
        """`whole` where nothing is open there; any other session is ended, and another takes its place."""
        if self.pooling is Pooling.PINNED or self._closed:
            self._ended(session)
            return
        if not whole:
            self._ended(session)
            session = self._opened(session.database)
        with self._changed:
            self._free[session.database].append(session)
            self._changed.notify()

    def _opened(self, database: str) -> _ServerSession:
        session = _ServerSession(self.server, database)
        self._open.add(session)
        return session

    def _ended(self, each: _ServerSession | _Client) -> None:
        each.end()
        self._open.discard(each)

    def _start(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client = _Client(connected, next(self._numbers))
                self._open.add(client)
                self._start(self._serve, client)

    def _serve(self, client: _Client) -> None:
        session: _ServerSession | None = None
        in_transaction = False
        try:
            if not client.greet(self.server):
                return
            while True:
                command = client.read()
                kind = command[0]
                if command.lower() == _OWN_NUMBER:
                    command = b"\x03select %d as `connection_id()`" % client.number
                if kind == COMMAND.COM_QUIT:
                    return
                if kind == COMMAND.COM_CHANGE_USER:
                    if session is not None:
                        self.give_back(session, whole=False)
                        session, in_transaction = None, False
                    if not client.change_user(self.server, command):
                        return
                    continue
                session = session or self.take(client.database)
                answer = session.execute(command, autocommit=client.autocommit)
                client.send(answer)
                if session.status is not None:  # an error has none
                    client.autocommit = bool(session.status & _AUTOCOMMIT)
                    in_transaction = bool(session.status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)
                if self.pooling is Pooling.MULTIPLEXING and not in_transaction:
                    self.give_back(session, whole=True)
                    session = None
        except (OSError, EOFError, AssertionError):
            in_transaction = True
        finally:
            if session is not None:
                with suppress(Exception):  # the server may be down
                    self.give_back(session, whole=not in_transaction)
            self._ended(client)


class _Packets:
    """Packets over one socket. The numbers of those that are written begin with each command."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._read = b""
        self.number = 0

    def read(self) -> bytes:
        head = self._bytes(4)
        self.number = (head[3] + 1) % 256
        return self._bytes(int.from_bytes(head[:3], "little"))

    def _bytes(self, size: int) -> bytes:
        while len(self._read) < size:
            found = self._socket.recv(65536)
            if not found:
                raise EOFError
            self._read += found
        found, self._read = self._read[:size], self._read[size:]
        return found

    def packed(self, body: bytes) -> bytes:
        head = struct.pack("<I", len(body))[:3] + bytes([self.number])
        self.number = (self.number + 1) % 256
        return head + body

    def send(self, *bodies: bytes) -> None:
        self._socket.sendall(b"".join(map(self.packed, bodies)))

    def end(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class _ServerSession:
    """A session with the server."""

    def __init__(self, server: MySQLServer, database: str) -> None:
        self.database = database
        #: As the last answer said; None after an error, and before the first answer.
        self.status: int | None = None
        self._autocommit = True
        # PyMySQL logs in, and its socket is used from then on.
        self._connection = server.connect(
            database or None, autocommit=None, client_flag=CLIENT.MULTI_STATEMENTS, ssl_disabled=True
        )
        self._connection._sock.settimeout(None)
        self._packets = _Packets(self._connection._sock)

    def execute(self, command: bytes, *, autocommit: bool) -> tuple[bytes, ...]:
        """The packets of the answer. The session is in the client's autocommit mode first."""
        if autocommit is not self._autocommit:
            self._answer(b"\x03set autocommit = " + str(int(autocommit)).encode())
        return self._answer(command)

    def _answer(self, command: bytes) -> tuple[bytes, ...]:
        self._packets.number = 0
        self._packets.send(command)
        packets: list[bytes] = []
        status: int | None = SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS
        while status is not None and status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS:
            status = self._read_result(packets)
        self.status = status
        if status is not None:
            self._autocommit = bool(status & _AUTOCOMMIT)
        return tuple(packets)

    def _read_result(self, packets: list[bytes]) -> int | None:
        """Read one result; the status at its end, None where that is an error."""
        packets.append(self._packets.read())
        if packets[-1][0] == _OK[0]:
            return _status_of_ok(packets[-1])
        if packets[-1][0] != _ERROR and not _is_eof(packets[-1]):
            for _ in ("columns", "rows"):
                packets.append(self._packets.read())
                while not _is_eof(packets[-1]) and packets[-1][0] != _ERROR:
                    packets.append(self._packets.read())
        return None if packets[-1][0] == _ERROR else int.from_bytes(packets[-1][3:5], "little")

    def end(self) -> None:
        self._packets.end()


class _Client:
    """A connected client."""

    def __init__(self, connected: socket.socket, number: int) -> None:
        self._packets = _Packets(connected)
        self.number = number
        self._scramble = b""
        self.database = ""
        self.autocommit = True

    def read(self) -> bytes:
        return self._packets.read()

    def send(self, packets: tuple[bytes, ...]) -> None:
        self._packets.send(*packets)

    def end(self) -> None:
        self._packets.end()

    def greet(self, server: MySQLServer) -> bool:
        """Greet and let in; whether the client has given the right password."""
        version = server.execute("select @@version")[0][0].encode()
        scramble = self._new_scramble()
        self._packets.send(
            b"\x0a"
            + (b"5.5.5-" if server.is_mariadb else b"")
            + version
            + struct.pack("<xI8sx", self.number, scramble)
            + struct.pack("<HBHH", _CAPABILITIES & 0xFFFF, _UTF8MB4, _AUTOCOMMIT, _CAPABILITIES >> 16)
            + struct.pack("<B10x12s", len(scramble) + 1, scramble[8:])
            + b"\0"
            + _PLUGIN
            + b"\0"
        )
        answer = self.read()
        (flags,) = struct.unpack("<I", answer[:4])
        user, _, rest = answer[32:].partition(b"\0")
        proof, rest = rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
        if flags & CLIENT.CONNECT_WITH_DB:
            database, _, rest = rest.partition(b"\0")
            self.database = database.decode()
        plugin = rest.partition(b"\0")[0] if flags & CLIENT.PLUGIN_AUTH else _PLUGIN
        return self._let_in(server, user, proof if plugin == _PLUGIN else self._asked_again())

    def change_user(self, server: MySQLServer, command: bytes) -> bool:
        user, _, rest = command[1:].partition(b"\0")
        self.database = rest[1 + rest[0] :].partition(b"\0")[0].decode()
        self.autocommit = True
        return self._let_in(server, user, self._asked_again())

    def _new_scramble(self) -> bytes:
        self._scramble = bytes(33 + secrets.randbelow(90) for _ in range(20))
        return self._scramble

    def _asked_again(self) -> bytes:
        self._packets.send(b"\xfe" + _PLUGIN + b"\0" + self._new_scramble() + b"\0")
        return self.read()

    def _let_in(self, server: MySQLServer, user: bytes, proof: bytes) -> bool:
        once = sha1(server.password.encode()).digest()
        mask = sha1(self._scramble + sha1(once).digest()).digest()
        right = user == server.user.encode() and proof == bytes(a ^ b for a, b in zip(once, mask, strict=True))
        self._packets.send(_OK if right else _DENIED)
        return right


def _is_eof(packet: bytes) -> bool:
    return packet[0] == _EOF and len(packet) <= _LONGEST_EOF


def _status_of_ok(packet: bytes) -> int:
    at = 1
    for _ in range(2):  # the numbers of rows and of the new row
        at += {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(packet[at], 1)
    return int.from_bytes(packet[at : at + 2], "little")
