"""A request's body behind TransactionMiddleware: as long as its Content-Length says, or its transaction rolls back."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.web.wsgi_server import OK, PLAIN, Server
from txpool.web.wsgi import TransactionMiddleware

TEXT = b"one\ntwo\nthree"


class Trickle(io.BytesIO):
    """A server that hands on what has come, and no more."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 2))


READS: dict[str, Callable[[Any], bytes]] = {
    "all": lambda stream: stream.read(),
    "exactly": lambda stream: stream.read(len(TEXT)),
    "parts": lambda stream: b"".join(iter(lambda: stream.read(5), b"")),
    "more": lambda stream: stream.read(10_000),
    "line": lambda stream: b"".join(iter(stream.readline, b"")),
    "part of a line": lambda stream: b"".join(iter(lambda: stream.readline(2), b"")),
    "lines": lambda stream: b"".join(stream.readlines()),
    "iterated": b"".join,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("kind", [io.BytesIO, Trickle])
def test_a_request_s_body_is_read_to_its_end_and_no_further(server: Server, read: Any, kind: Any) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start_response(OK, PLAIN)
        return [read(environ["wsgi.input"])]

    stream = kind(TEXT + b"\nthe next request")
    environ = {"wsgi.input": stream, "CONTENT_LENGTH": str(len(TEXT))}
    assert server.ask(TransactionMiddleware(app), "POST", validated=False, **environ) == (OK, TEXT)
    assert server.rows == [1]
    assert stream.tell() == len(TEXT)


@pytest.mark.parametrize("read", [each for name, each in READS.items() if name != "part of a line"])
@pytest.mark.parametrize("end", [2, 4, 9])
@pytest.mark.parametrize("swallows", [False, True])
def test_one_that_was_cut_off_rolls_back_whatever_the_application_says(
    server: Server, read: Any, end: int, swallows: bool
) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start_response(OK, PLAIN)
        with contextlib.suppress(OSError) if swallows else contextlib.nullcontext():
            read(environ["wsgi.input"])
        return [b"done"]

    environ = {"wsgi.input": io.BytesIO(TEXT[:end]), "CONTENT_LENGTH": str(len(TEXT))}
    with pytest.raises(ConnectionAbortedError, match=f"went away after {end} of 13 bytes"):
        server.ask(TransactionMiddleware(app), "POST", validated=False, **environ)
    assert (server.heard, server.rows) == ([], [])


@pytest.mark.parametrize("length", ["", "13", "nonsense"])
def test_a_body_that_is_not_read_matters_not(server: Server, length: str) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start_response(OK, PLAIN)
        return [b"done"]

    environ = {"wsgi.input": io.BytesIO(), "CONTENT_LENGTH": length}
    assert server.ask(TransactionMiddleware(app), "POST", validated=False, **environ) == (OK, b"done")
