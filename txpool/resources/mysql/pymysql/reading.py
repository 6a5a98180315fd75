"""PyMySQL's connection with a buffer of its own: what has come is read without a call for each part of a packet.

Most answers are OKs without a result, and the same ones come again and again. They are read at once, by their bytes,
and what was read is kept: that takes a tenth of the instructions of PyMySQL's own objects.
"""

from __future__ import annotations

import ssl
import struct
from functools import lru_cache, partial
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CR, SERVER_STATUS

from txpool import loops

#: How many bytes are asked for at once, and when it is known that so many follow.
_AT_ONCE, _OF_A_LONG_ONE = 1 << 16, 1 << 20
#: The length of a packet that another continues; as a mask, a packet's length in its head.
WHOLE_PACKET: Final = 2**24 - 1
_MORE_RESULTS: Final = SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS
#: The beginning of an OK: the packet's length in three bytes, its number in one; what it is, 0; the numbers of rows and
#: of the new row, if each is of one byte; the status, and how many warnings there are.
_OK_HEAD: Final = struct.Struct("<IBBBHH")
_OK: Final = b"\0"
_LONGER: Final = 251  # the first byte of a number that has more than one
#: How many bytes are looked at for OKs: answers to several commands have fewer.
_LOOKED_AT: Final = 512
#: How many bytes a socket surely takes at once, if all before was answered.
_FITS: Final = 4096
#: An OK of the server's: how many rows are changed, the number of the new row, the status, how many warnings there are,
#: and the message.
OK = tuple[int, int, int, int, bytes]


@lru_cache(maxsize=512)
def _oks_of(answers: bytes, most: int) -> tuple[tuple[OK, ...], int]:
    """The OKs at the beginning of these answers to as many commands, and where they end."""
    found: list[OK] = []
    begin, length = 0, len(answers)
    while len(found) < most and begin + _OK_HEAD.size <= length:
        head, kind, affected, insert_id, status, warnings = _OK_HEAD.unpack_from(answers, begin)
        message, end = begin + _OK_HEAD.size, begin + 4 + (head & WHOLE_PACKET)
        if kind or affected >= _LONGER or insert_id >= _LONGER or status & _MORE_RESULTS:
            break
        if head >> 24 != 1 or not message <= end <= length:
            break
        found.append((affected, insert_id, status, warnings, answers[message:end]))
        begin = end
    return tuple(found), begin


class ReadingConnection(Connection):  # type: ignore[misc]
    """PyMySQL's connection, whose answers are read out of a buffer."""

    #: What has come, and how much of it was read.
    _buffer: bytes
    _position: int
    _next_seq_id: int
    _read_timeout: float | None
    _current_timeout: float | None

    def connect(self, sock: Any = None) -> None:
        self._buffer, self._position = b"", 0
        super().connect(sock)
        self._rfile = None  # nobody reads from it, and it would keep the socket open

    def _force_close(self) -> None:
        super()._force_close()
        self._buffer, self._position = b"", 0

    def _read_bytes(self, num_bytes: int) -> bytes:
        begin = self._position
        end = begin + num_bytes
        if end > len(self._buffer):
            self._receive(num_bytes)
            begin, end = 0, num_bytes
        self._position = end
        return self._buffer[begin:end]

    def _write_in_loop(self, data: bytes) -> None:
        if len(data) > _FITS and (call := loops.current()) is not None:
            call.in_thread(super()._write_bytes, data)
        else:
            super()._write_bytes(data)

    def read_oks(self, most: int) -> tuple[OK, ...]:
        """The next answers to commands, at most so many, which are OKs, have come, and are followed by no other result.

        Empty if the next one is none of these. It waits if nothing has come.
        """
        begin = self._position
        if begin == len(self._buffer):
            self._receive(1)
            begin = 0
        buffer = self._buffer
        if buffer[begin + 4 : begin + 5] != _OK:
            return ()
        # One of the program's own is cut out: what may follow it is data.
        end = begin + 4 + buffer[begin] if most == 1 else begin + _LOOKED_AT
        oks, length = _oks_of(buffer[begin:end], most)
        self._position = begin + length
        return oks

    def _receive(self, least: int) -> None:
        """Have so many bytes at the beginning of the buffer. OperationalError if the connection is lost."""
        sock = self._sock
        if self._current_timeout != self._read_timeout:
            sock.settimeout(self._read_timeout)
            self._current_timeout = self._read_timeout
        receive = sock.recv
        if loops.used and (call := loops.current()) is not None:
            receive = partial(_receive_in_loop, call, sock, self._read_timeout)
        parts = [self._buffer[self._position :]]
        missing = least - len(parts[0])
        try:
            received = receive(_AT_ONCE)
            while received and len(received) < missing:  # a long packet
                parts.append(received)
                missing -= len(received)
                received = receive(min(missing, _OF_A_LONG_ONE))
            if not received:
                raise pymysql.OperationalError(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
            self._buffer, self._position = b"".join((*parts, received)), 0
        except OSError as error:
            self._force_close()
            message = f"Lost connection to MySQL server during query ({error})"
            raise pymysql.OperationalError(CR.CR_SERVER_LOST, message) from error
        except BaseException:
            self._force_close()
            raise


def _receive_in_loop(call: loops.TaskCall, sock: Any, timeout: float | None, most: int) -> bytes:
    """As the socket's recv(), while the loop goes on."""
    while True:
        if not isinstance(sock, ssl.SSLSocket):
            if not call.wait_for(sock.fileno(), loops.READ, timeout):
                raise TimeoutError("timed out")
            return bytes(sock.recv(most))
        former = sock.gettimeout()
        sock.settimeout(0)
        try:
            return sock.recv(most)
        except ssl.SSLWantReadError:
            wanted = loops.READ
        except ssl.SSLWantWriteError:
            wanted = loops.WRITE
        finally:
            sock.settimeout(former)
        if not call.wait_for(sock.fileno(), wanted, timeout):
            raise TimeoutError("timed out")


def _write_in_loops() -> None:
    ReadingConnection._write_bytes = ReadingConnection._write_in_loop


loops.when_used(_write_in_loops)
