"""The status page under clients that do not behave: connections, seconds, bytes; and requests that are none."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recovery.operator.last_scan import Standing
from recovery.service.serving import Limits
from recovery.service.status import StatusServer
from tests.models.recovery import RecoveryWorld, logged, world_after
from tests.unit.recovery.service.status_client import BEARER, TOKEN, Got, doubt, get, overview
from txpool.config.address import Address
from txpool.config.properties import Properties, Secret
from txpool.config.settings import RecoverySettings
from txpool.errors import ConfigurationError
from txpool.metrics import instruments

WHOLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
PATHS = ("/", "/metrics", "/healthz", "/api/in-doubt")
#: Longer than any test: what ends a connection is not its deadline.
FOREVER = 600.0

Serve = Callable[..., StatusServer]


@pytest.fixture
def world() -> RecoveryWorld:
    return world_after(logged, "decided")


@pytest.fixture
def serve(world: RecoveryWorld) -> Iterator[Serve]:
    with ExitStack() as opened:

        def start(token: Secret | None = None, address: str = "127.0.0.1", **limits: Any) -> StatusServer:
            server = StatusServer(world.recovery, Address(address, 0), token, Limits(**limits))
            return opened.enter_context(closing(server))

        yield start
    instruments.armed = False


def connect(server: StatusServer, data: bytes = b"") -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(60)
    try:
        connection.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1].rstrip("/"))))
        connection.sendall(data)
    except BaseException:
        connection.close()
        raise
    return connection


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server ends it, however it does."""
    found = b""
    with connection, suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            found += data
    return found


def raw_response(server: StatusServer, data: bytes) -> bytes:
    return rest(connect(server, data))


@contextmanager
def crowd(server: StatusServer, number: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        yield [opened.enter_context(connect(server, data)) for _ in range(number)]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def until_there_are(number: int) -> None:
    """Of descriptors, so many."""
    while descriptors() > number:
        time.sleep(0.05)


def many_in_doubt(world: RecoveryWorld, number: int) -> None:
    seen = overview(in_doubt=tuple(doubt(gtrid=f"gtrid-{n:06}") for n in range(number)))
    world.recovery.last_scan.standing = Standing(seen)


# -- bounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-", b"GET /api/in-doubt HTTP/1.0\r\n"])
def test_the_oldest_gives_way_to_a_newcomer(serve: Serve, data: bytes) -> None:
    server = serve(connections=4, seconds=FOREVER)
    with crowd(server, 4, data) as held:
        last = connect(server, WHOLE[:20])
        assert rest(held[0]) == b""
        last.sendall(WHOLE[20:])
        assert b" 200 OK" in rest(last)
        for other in held[1:]:
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.recv(1)


def test_a_crowd_takes_a_fixed_number_of_descriptors_and_of_threads(serve: Serve) -> None:
    server = serve(connections=8, seconds=FOREVER)
    before, threads = descriptors(), threading.active_count()
    kinds = (b"", b"G", WHOLE[:-2], WHOLE, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20)
    with ExitStack() as opened:
        for number in range(500):
            opened.enter_context(connect(server, kinds[number % len(kinds)]))
        for path in PATHS * 3:
            assert get(server, path[1:]).status == 200
        assert descriptors() - before - 500 <= 8 + 1
        assert threading.active_count() == threads


def test_those_whose_answer_is_not_taken_give_way(serve: Serve, world: RecoveryWorld) -> None:
    many_in_doubt(world, 8000)
    server = serve(connections=4, seconds=FOREVER)
    with crowd(server, 12, b"GET /api/in-doubt HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        assert get(server, "healthz").status == 200
        assert len(get(server, "api/in-doubt").text) > 3_000_000


def test_an_answered_connection_gives_way_before_one_that_still_asks(serve: Serve) -> None:
    server = serve(connections=4, seconds=FOREVER)
    asking = connect(server, WHOLE[:20])
    with crowd(server, 20, WHOLE):
        asking.sendall(WHOLE[20:])
        assert b" 200 OK" in rest(asking)


def test_a_request_has_one_deadline_however_slowly_it_comes(serve: Serve) -> None:
    server = serve(seconds=0.5)
    connection = connect(server)
    with pytest.raises(ConnectionError):
        for _ in range(600):
            connection.sendall(b"x")
            time.sleep(0.1)
    connection.close()


def test_a_reply_that_is_not_read_has_the_same_deadline(serve: Serve, world: RecoveryWorld) -> None:
    many_in_doubt(world, 10_000)  # 5 MB: the system takes 4 MB of them for the server, and no more
    server = serve(seconds=0.5)
    before = descriptors()
    with crowd(server, 8, b"GET /api/in-doubt HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as held:
        assert held[0].recv(1)  # the server has it: on a busy machine it may be late
        until_there_are(before + len(held))
        assert len(rest(held[0])) < 4_700_000


def test_an_answered_connection_that_stays_open_has_the_same_deadline(serve: Serve) -> None:
    server = serve(seconds=0.5)
    before = descriptors()
    with crowd(server, 8, WHOLE) as held:
        until_there_are(before + len(held))


def test_what_follows_a_request_is_not_read_for_ever(serve: Serve) -> None:
    server = serve(seconds=FOREVER, rest=1 << 16)
    connection = connect(server, WHOLE)
    with pytest.raises(ConnectionError):
        for _ in range(10_000):
            connection.sendall(b"x" * 4096)
    connection.close()


def test_a_list_that_is_too_long_is_refused_and_others_are_shared(serve: Serve, world: RecoveryWorld) -> None:
    server = serve()
    many_in_doubt(world, 10_001)
    got = get(server, "api/in-doubt")
    assert (got.status, "txpool-recovery list" in got.text) == (503, True)
    many_in_doubt(world, 2)
    assert get(server, "api/in-doubt").text.count("gtrid-") == 2


def test_a_page_that_took_long_to_make_is_kept_until_something_changes(
    serve: Serve, world: RecoveryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recovery.service import status

    monkeypatch.setattr(status, "_COSTLY_SECONDS", -1.0)
    server = serve()
    for number in (2, 3):
        many_in_doubt(world, number)
        for _ in range(3):
            assert f"{number} transactions in doubt" in get(server).text
    world.recovery.last_scan.failed(OSError("a bad disk"))
    assert "The last scan failed" in get(server).text


# -- its end ------------------------------------------------------------------------------------------------------


def test_it_ends_while_a_thousand_connections_are_open(serve: Serve) -> None:
    before, threads = descriptors(), threading.active_count()
    server = serve(seconds=FOREVER)
    with crowd(server, 1000, WHOLE[:-2]):
        server.close()
        server.close()
        assert threading.active_count() == threads
        assert descriptors() == before + 1000
    with pytest.raises(OSError):
        connect(server)


def test_it_ends_while_a_reply_is_on_its_way(serve: Serve, world: RecoveryWorld) -> None:
    many_in_doubt(world, 8000)
    server = serve(seconds=FOREVER)
    with crowd(server, 8, b"GET /api/in-doubt HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        assert get(server, "healthz").status == 200
        server.close()


def test_an_address_that_cannot_be_served_leaves_nothing_behind(serve: Serve, world: RecoveryWorld) -> None:
    server = serve()
    before = descriptors()
    for host, port in (("127.0.0.1", int(server.url.rsplit(":", 1)[1].rstrip("/"))), ("192.0.2.1", 0)):
        with pytest.raises(ConfigurationError, match=rf"status\.address = {host}"):
            StatusServer(world.recovery, Address(host, port))
    assert descriptors() == before


# -- requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*PATHS, "/nothing", "/api/scan"])
def test_head_is_get_without_a_body(serve: Serve, path: str) -> None:
    server = serve()
    asked = f" {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    while True:
        (got, body), (head, none) = (
            raw_response(server, verb + asked).split(b"\r\n\r\n", 1) for verb in (b"GET", b"HEAD")
        )
        dates = [line for each in (got, head) for line in each.splitlines() if line.startswith(b"Date: ")]
        if dates[0] == dates[1]:  # else a second has passed in between
            break
    if path == "/metrics":  # which counts, and so may have another length
        got, head = (b"\r\n".join(line for line in each.splitlines() if b"Length" not in line) for each in (got, head))
    assert (head, none) == (got, b"")
    assert body


@pytest.mark.parametrize(
    "method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "get", "BREW", "__class__"]
)
def test_a_method_that_is_not_served_is_answered(serve: Serve, method: str) -> None:
    assert raw_response(serve(), f"{method} / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()).startswith(
        b"HTTP/1.1 501 "
    )


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n\r\n" + WHOLE, b"200"),
        (WHOLE.replace(b"\r\n", b"\n"), b"200"),
        (WHOLE * 100, b"200"),
        (WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n"), b"200"),
        (WHOLE.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"), b"200"),
        (WHOLE.replace(b"\r\n\r\n", b"\r\nContent-Length: 90000\r\n\r\n") + b"x" * 90_000, b"200"),
        (WHOLE.replace(b"1.1", b"1.0"), b"200"),
        (WHOLE.replace(b"1.1", b"1.7"), b"200"),
        (WHOLE.replace(b"1.1", b"0.9"), b"505"),
        (WHOLE.replace(b"1.1", b"2.0"), b"505"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"GET /healthz\r\nHost: 127.0.0.1\r\n\r\n", b"505"),
        (WHOLE.replace(b"1.1", b"\xb2.1"), b"400"),
        (WHOLE.replace(b"HTTP", b"ICY"), b"400"),
        (WHOLE.replace(b"1.1", b"1.1.1"), b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"a b c d e\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", b"400"),
        (b"\x00" * 5000 + b"\n\n", b"400"),
        (b"x" * 100_000, b"431"),
        (b"\r\n" * 100_000, b"431"),
        (WHOLE[:-2] + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (WHOLE[:-2] + b"X: " + b"y" * 40_000 + b"\r\n\r\n", b"431"),
        (WHOLE[:-2] + b"\xff: \x00\r\n : :\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"421"),
    ],
)
def test_whatever_comes_is_answered_and_logged_nowhere(
    serve: Serve, data: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(seconds=FOREVER)
    before = descriptors()
    got = raw_response(server, data)
    assert got.startswith(b"HTTP/1.1 " + status + b" "), got[:200]
    assert got.count(b"HTTP/1.1 ") == 1
    for header in (b"Connection: close", b"Cache-Control: no-store", b"Content-Security-Policy: default-src 'none'"):
        assert header in got
    assert b"y" * 100 not in got
    assert get(server, "healthz").status == 200
    until_there_are(before)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_head_that_ends_too_early_is_not_acted_on(serve: Serve) -> None:
    server = serve(seconds=FOREVER)
    for sent, status in ((WHOLE[:-2], b"HTTP/1.1 400 "), (b"G", b"HTTP/1.1 400 "), (b"", b""), (b"\r\n", b"")):
        connection = connect(server, sent)
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection)[: len(b"HTTP/1.1 400 ")] == status


def test_a_head_may_come_byte_by_byte(serve: Serve) -> None:
    connection = connect(serve(seconds=FOREVER))
    for byte in WHOLE:
        connection.sendall(bytes([byte]))
    assert b" 200 OK" in rest(connection)


def test_an_answer_that_cannot_be_made_is_said_once(
    serve: Serve, world: RecoveryWorld, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    world.recovery.last_scan.standing = Standing(replace(overview(), in_doubt=None))  # type: ignore[arg-type]
    for _ in range(3):
        got = get(server, "api/in-doubt")
        assert (got.status, "NoneType" in got.text) == (500, False)
    assert caplog.text.count("could not be answered") == 1
    assert get(server, "nothing").status == 404


# -- a token that cannot be read ----------------------------------------------------------------------------------


def refused(got: Got) -> bool:
    return got.status == 503 and "status.token cannot be read" in got.text and "WWW-Authenticate" not in got.headers


@pytest.mark.parametrize(("kind", "name"), [("file", "of-the-token"), ("env", "TXPOOL_TEST_OF_THE_TOKEN")])
def test_a_token_that_cannot_be_read_lets_nobody_in(
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    name: str,
) -> None:
    def write() -> None:
        if kind == "file":
            (tmp_path / name).touch(0o600)
            (tmp_path / name).write_text(TOKEN)
        else:
            monkeypatch.setenv(name, TOKEN)

    def remove() -> None:
        (tmp_path / name).unlink(missing_ok=True) if kind == "file" else monkeypatch.delenv(name, raising=False)

    text = f"status.token = ${{{kind}:{name}}}"
    token = RecoverySettings.load(Properties.parse(text, path=tmp_path / "recovery.properties")).status_token
    here, beyond = serve(token), serve(token, address="0.0.0.0")
    said = 0
    for _ in range(2):
        remove()
        for headers in (BEARER, {}, {"Authorization": "Bearer"}, {"Authorization": "Basic Og=="}) * 2:
            assert refused(get(here, "api/scan", method="POST", **headers))
            assert refused(get(beyond, "healthz", **headers))
            assert refused(get(beyond, "nothing", **headers))
        assert get(here, "api/scan", method="POST", Host="evil.example").status == 421
        assert get(here, "api/scan", method="POST", Origin="http://evil.example").status == 403
        for path in PATHS:
            assert get(here, path[1:]).status == 200
        errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
        said += 2  # for each of the servers
        assert len(errors) == said
        assert all(name in error for error in errors)
        write()
        assert get(here, "api/scan", method="POST", **BEARER).status == 202
        assert get(beyond, "healthz", **BEARER).status == 200
        assert get(beyond, "healthz").status == 401
