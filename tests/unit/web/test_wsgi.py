"""TransactionMiddleware: what the server hears of an answer, and when; both of its sides are held to PEP 3333."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import pytest

import txpool
from tests.unit.web.wsgi_server import OK, PLAIN, Server
from txpool.tm.ambient import current, make_ambient, restore_ambient
from txpool.web.wsgi import TransactionMiddleware


class Body:
    """A body that is iterated, and closed."""

    def __init__(self, chunks: Iterable[bytes], close: Callable[[], object] = lambda: None) -> None:
        self._chunks = chunks
        self._close = close
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._chunks)

    def close(self) -> None:
        self.closed += 1
        self._close()


def test_an_answer_is_given_after_the_decision(server: Server) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start_response(OK, [*PLAIN, ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")])
        assert server.heard == []
        assert environ["txpool.transaction"] is current()
        return [b"do", b"ne"]

    assert server.serve(app) == (OK, b"done")
    assert server.heard == [(OK, [1])]
    assert server.headers == [*PLAIN, ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]


def test_a_generator_starts_late_and_works_in_the_transaction_to_its_end(server: Server) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response(OK, PLAIN)
        server.insert(1)
        yield b"a"
        server.insert(2)
        assert server.rows == []
        yield b"b"
        server.insert(3)

    assert server.serve(app) == (OK, b"ab")
    assert server.heard == [(OK, [1, 2, 3])]


def test_what_is_written_comes_before_what_is_iterated(server: Server) -> None:
    late: list[Any] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        write = start_response(OK, PLAIN)
        late.append(write)
        write(b"first ")
        return [b"second"]

    assert server.serve(app) == (OK, b"first second")
    with pytest.raises(txpool.ProgrammingError, match="nothing more can be written"):
        late[0](b"third")


def test_close_is_called_once_and_within(server: Server) -> None:
    body = Body([b"a"], lambda: server.insert(1))

    def app(environ: Any, start_response: Any) -> Body:
        start_response(OK, PLAIN)
        return body

    assert server.serve(app) == (OK, b"a")
    assert (body.closed, server.heard) == (1, [(OK, [1])])


def _fail() -> None:
    raise ZeroDivisionError("the application's own")


def _failing(server: Server) -> Iterator[bytes]:
    server.insert(3)
    yield b"a"
    _fail()


@pytest.mark.parametrize("where", ["call", "first", "later", "close"])
def test_an_exception_rolls_back_and_reaches_the_server(server: Server, where: str) -> None:
    body = Body(_failing(server) if where == "later" else [b"a"], _fail if where == "close" else lambda: None)

    def app(environ: Any, start_response: Any) -> Any:
        server.insert(1)
        if where == "call":
            _fail()
        start_response(OK, PLAIN)
        return body

    def generating(environ: Any, start_response: Any) -> Any:
        server.insert(1)
        _fail()
        yield b""

    with pytest.raises(ZeroDivisionError):
        server.ask(TransactionMiddleware(generating if where == "first" else app), validated=False)
    assert (server.heard, server.rows) == ([], [])
    assert current() is None
    assert body.closed == (where in ("later", "close"))


@pytest.mark.parametrize(
    ("status", "kept"),
    [("200 OK", True), ("303 See Other", True), ("404 Not Found", False), ("409 Conflict", False), ("500 Oh", False)],
)
def test_an_error_s_status_rolls_back_and_is_the_answer(server: Server, status: str, kept: bool) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start_response(status, PLAIN)
        return [b"so"]

    assert server.serve(app) == (status, b"so")
    assert server.heard == [(status, [1] if kept else [])]


def test_which_status_rolls_back_is_the_users_choice(server: Server) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start_response("404 Not Found", PLAIN)
        return [b""]

    with pytest.raises(ZeroDivisionError):
        server.serve(app, rollback_on_status=lambda status: 1 / 0)
    assert server.rows == []
    assert server.serve(app, rollback_on_status=lambda status: status >= 500) == ("404 Not Found", b"")
    assert server.rows == [1]


def test_an_answer_that_tells_of_an_exception_rolls_back_and_replaces_all_there_was(server: Server) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        server.insert(1)
        start_response(OK, [*PLAIN, ("Content-Length", "8")])
        yield b"half"
        try:
            _fail()
        except ZeroDivisionError:
            start_response("200 Not so OK", PLAIN, sys.exc_info())
        yield b"sorry"

    assert server.serve(app) == ("200 Not so OK", b"sorry")
    assert (server.headers, server.rows) == (PLAIN, [])


@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_a_failed_commit_is_no_success(server: Server, method: str, caplog: pytest.LogCaptureFixture) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        txpool.current().before_completion(_fail)  # type: ignore[union-attr]
        start_response(OK, [*PLAIN, ("Set-Cookie", "session=1")])
        return [b"" if method == "HEAD" else b"done"]

    status, body = server.serve(app, method)
    assert status == "503 Service Unavailable"
    assert (b"was rolled back" in body) == (method == "POST")
    assert "Set-Cookie" not in dict(server.headers)
    assert server.exc_info[0] is txpool.TransactionRolledBack
    assert server.heard == [(status, [])]
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert f"{method} /: the application's answer is withheld" in record.getMessage()
    assert "unit-test" in str(record.exc_info[1])  # type: ignore[index]


def test_one_that_is_marked_to_roll_back_is_no_success(server: Server) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        environ["txpool.transaction"].set_rollback_only()
        start_response(OK, PLAIN)
        return [b"done"]

    assert server.serve(app)[0] == "503 Service Unavailable"
    assert server.rows == []


@pytest.mark.parametrize("status", [OK, "504 Gateway Timeout"])
def test_a_timeout_ends_a_body_that_does_not(server: Server, status: str) -> None:
    """The application's own answer to it is the answer."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        server.insert(1)
        tx = environ["txpool.transaction"]
        if status != OK:
            while tx.active:
                pass
        start_response(status, PLAIN)
        yield b"a"
        while status == OK:
            yield b""

    if status == OK:
        with pytest.raises(txpool.TransactionTimeout):
            server.serve(app, timeout=0.3)
        assert server.heard == []
    else:
        assert server.serve(app, timeout=0.3) == (status, b"a")
    assert server.rows == []


def test_a_stream_is_refused(server: Server) -> None:
    bodies: list[Body] = []

    def app(environ: Any, start_response: Any) -> Body:
        server.insert(1)
        start_response(OK, PLAIN)
        bodies.append(Body(iter(lambda: b"x" * 1000, b"")))
        return bodies[-1]

    with pytest.raises(txpool.ProgrammingError, match=r"GET / answers by more than max_body = 4,096 bytes.*exclude="):
        server.serve(app, max_body=4096)

    def events(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start_response(OK, [("Content-Type", "text/event-stream; charset=utf-8")])
        return [b"data: 1\n\n"]

    with pytest.raises(txpool.ProgrammingError, match=r"answers by a stream of events.*exclude="):
        server.serve(events)
    assert (server.heard, server.rows, bodies[0].closed) == ([], [], 1)


def test_a_file_is_read_before_the_decision(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 20_000)

    def app(environ: Any, start_response: Any) -> Any:
        server.insert(1)
        start_response(OK, PLAIN)
        return environ["wsgi.file_wrapper"]((tmp_path / "file").open("rb"))

    environ = {"wsgi.file_wrapper": FileWrapper}
    with pytest.raises(txpool.ProgrammingError, match="more than max_body = 19,999 bytes"):
        server.ask(TransactionMiddleware(app, max_body=19_999), **environ)
    assert server.rows == []
    assert server.ask(TransactionMiddleware(app, max_body=20_000), **environ) == (OK, b"x" * 20_000)
    assert server.rows == [1]


def test_what_is_excluded_passes_by(server: Server) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        assert current() is None
        start_response(OK, PLAIN)
        yield b"a"
        assert server.heard == [(OK, [])]

    assert server.serve(app, exclude=lambda environ: environ["PATH_INFO"] == "/") == (OK, b"a")


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (lambda start_response: None, "has not called start_response"),
        (lambda start_response: [start_response(OK, PLAIN), start_response(OK, PLAIN)], "twice"),
        (lambda start_response: start_response("ok", PLAIN), "'ok' is no status"),
        (lambda start_response: start_response("409 \u20ac 7 missing", PLAIN), "is no status"),
        (lambda start_response: start_response("200 \a", PLAIN), "is no status"),
        (lambda start_response: start_response(OK, [("X-A", "b\r\nX-C: d")]), "the header 'X-A' cannot be sent"),
        (lambda start_response: start_response(OK, [("X A", "b")]), "the header 'X A' cannot be sent"),
        (lambda start_response: start_response(OK, [("", "b")]), "the header '' cannot be sent"),
        (lambda start_response: start_response(OK, [("Content-length", "many")]), "length' cannot be sent"),
        (lambda start_response: start_response(OK, [("Content-Length", "2")]), "Content-Length says 2"),
        (lambda start_response: start_response(OK, [("X-A", "\u20ac")]), "the header 'X-A' cannot be sent"),
    ],
)
@pytest.mark.parametrize("body", [[], [b"a"]])
def test_what_a_server_would_refuse_rolls_back(server: Server, start: Any, why: str, body: list[bytes]) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start(start_response)
        return body

    with pytest.raises(txpool.ProgrammingError, match=why):
        server.ask(TransactionMiddleware(app), validated=False)
    assert (server.heard, server.rows) == ([], [])


@pytest.mark.parametrize(("method", "status"), [("HEAD", OK), ("GET", "304 Not Modified"), ("GET", "204 No Content")])
def test_a_length_of_what_is_not_sent_is_no_matter(server: Server, method: str, status: str) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start_response(status, [("Content-Length", "2")])
        return []

    assert server.ask(TransactionMiddleware(app), method, validated=False) == (status, b"")
    assert server.rows == [1]


def test_a_body_of_nothing_takes_no_memory(server: Server) -> None:
    parts: list[Any] = []

    def app(environ: Any, start_response: Any) -> Iterator[Any]:
        start_response(OK, PLAIN)
        parts.append(start_response.__self__.chunks)
        for _ in range(9):
            yield b""
        yield memoryview(b"12345678").cast("Q")

    with pytest.raises(txpool.ProgrammingError, match="more than max_body = 7 bytes"):
        server.ask(TransactionMiddleware(app, max_body=7), validated=False)
    assert parts == [[]]


def test_a_path_makes_no_line_of_the_log(server: Server) -> None:
    with pytest.raises(txpool.ProgrammingError, match=r"^GET /a%0AERROR%20b%C3%A9: the application has not"):
        server.ask(TransactionMiddleware(lambda *_: []), validated=False, PATH_INFO="/a\nERROR b\xc3\xa9")


def test_a_transaction_that_an_earlier_request_has_left_open_is_not_joined(server: Server) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start_response(OK, PLAIN)
        return [b"done"]

    left = txpool.begin()
    token = make_ambient(left)
    middleware = TransactionMiddleware(app)
    try:
        environ: dict[str, Any] = {}
        setup_testing_defaults(environ)
        middleware(environ, lambda *_: lambda _: None)
        assert server.rows == [1]
        assert current() is left
    finally:
        restore_ambient(token)
        txpool.rollback()
    assert server.rows == [1]


def test_of_two_middlewares_the_outer_one_decides(server: Server) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        server.insert(1)
        start_response(OK, PLAIN)
        return [b"done"]

    inner = TransactionMiddleware(validator(app))

    def outer(environ: Any, start_response: Any) -> Any:
        body = inner(environ, start_response)
        assert server.rows == []
        return body

    assert server.serve(outer) == (OK, b"done")
    assert server.heard == [(OK, [1])]
