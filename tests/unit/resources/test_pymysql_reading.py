"""What is read out of the buffer of PyMySQL's connection, however the server's packets come in."""

from __future__ import annotations

import struct

import pymysql
import pytest

from txpool.resources.mysql.pymysql.reading import ReadingConnection, _oks_of

AUTOCOMMIT, MORE_RESULTS = 2, 8


class Socket:
    """Gives these bytes, one text for each recv(), and then says that the other end is closed."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = list(parts)
        self.closed = False
        self.timeouts: list[float | None] = []

    def recv(self, size: int) -> bytes:
        if not self._parts:
            return b""
        part = self._parts.pop(0)
        if part == b"hangs":
            raise TimeoutError("timed out")
        if len(part) > size:
            self._parts.insert(0, part[size:])
        return part[:size]

    def settimeout(self, seconds: float | None) -> None:
        self.timeouts.append(seconds)

    def close(self) -> None:
        self.closed = True


def packet(content: bytes, number: int = 1) -> bytes:
    return struct.pack("<I", len(content) | number << 24) + content


def ok(affected: int = 0, insert_id: int = 0, status: int = AUTOCOMMIT, message: bytes = b"", number: int = 1) -> bytes:
    numbers = b"".join(bytes([n]) if n < 251 else b"\xfc" + struct.pack("<H", n) for n in (affected, insert_id))
    return packet(b"\0" + numbers + struct.pack("<HH", status, 0) + message, number)


ERROR = packet(b"\xff\x78\x04#42S02no such table")


def reading(*parts: bytes) -> ReadingConnection:
    connection = ReadingConnection(defer_connect=True)
    connection._buffer, connection._position = b"", 0
    connection._sock = Socket(*parts)
    connection._current_timeout = connection._read_timeout = None
    connection._next_seq_id = 1
    return connection


def test_all_that_have_come_are_read_at_once() -> None:
    connection = reading(ok() + ok(3, 7, message=b"hi"))
    assert connection.read_oks(3) == ((0, 0, AUTOCOMMIT, 0, b""), (3, 7, AUTOCOMMIT, 0, b"hi"))


def test_no_more_are_read_than_were_asked_for() -> None:
    connection = reading(ok(1) + ok(2) + ok(3))
    assert [each[0] for each in connection.read_oks(2)] == [1, 2]
    assert [each[0] for each in connection.read_oks(1)] == [3]


@pytest.mark.parametrize(
    "other",
    [
        ERROR,
        ok(251),
        ok(1, 10_000),
        ok(status=AUTOCOMMIT | MORE_RESULTS),
        ok(message=b"x" * 300),
        ok(number=2),
        packet(b"\1"),
        packet(b"\xfe\0\0\2\0"),
    ],
)
def test_what_is_no_plain_ok_is_left_where_it_is(other: bytes) -> None:
    connection = reading(ok(1) + other + ok(2))
    assert [each[0] for each in connection.read_oks(1)] == [1]
    assert connection.read_oks(1) == ()
    assert connection._read_bytes(len(other)) == other
    assert [each[0] for each in connection.read_oks(1)] == [2]


@pytest.mark.parametrize("size", [1, 3, 11, 12, 1000])
def test_however_they_are_cut_none_is_lost(size: int) -> None:
    whole = ok(1, message=b"a message") + ok(2) + ok(3, message=b"x")
    connection = reading(*(whole[begin : begin + size] for begin in range(0, len(whole), size)))
    found = []
    while len(found) < 3:
        oks = connection.read_oks(1)
        if not oks:  # as PyMySQL goes on
            (head,) = struct.unpack("<I", connection._read_bytes(4))
            oks = ((connection._read_bytes(head & 0xFFFFFF)[1], 0, 0, 0, b""),)
        found += [each[0] for each in oks]
    assert found == [1, 2, 3]


def test_a_long_packet_comes_in_many_parts() -> None:
    long = b"x" * 5_000_000
    connection = reading(b"ab", long[:10], long[10:] + b"rest")
    assert connection._read_bytes(2) == b"ab"
    assert connection._read_bytes(len(long)) == long
    assert connection._read_bytes(4) == b"rest"


def test_what_stands_behind_an_answer_of_the_programs_is_not_kept() -> None:
    _oks_of.cache_clear()
    row = packet(b"\6secret", 2)
    assert len(reading(ok(1) + row).read_oks(1)) == 1
    assert _oks_of(ok(1), 1)[1] == len(ok(1))
    assert _oks_of.cache_info().hits == 1  # the packet alone was looked at


@pytest.mark.parametrize("come", [[], [b"\7"], [ok()[:5]], [ok(), ok()[:9]]])
def test_where_the_server_has_gone_the_connection_is_closed(come: list[bytes]) -> None:
    connection = reading(*come)
    sock = connection._sock
    with pytest.raises(pymysql.OperationalError, match="Lost connection"):
        for _ in range(3):
            connection._read_bytes(11)
    assert sock.closed
    assert not connection.open
    assert connection._buffer == b""


def test_a_reply_that_does_not_come_in_time_has_its_reason() -> None:
    connection = reading(b"hangs")
    connection._read_timeout = 3.0
    sock = connection._sock
    with pytest.raises(pymysql.OperationalError, match="timed out") as told:
        connection.read_oks(1)
    assert isinstance(told.value.__context__, TimeoutError)
    assert sock.timeouts == [3.0]
    assert sock.closed
