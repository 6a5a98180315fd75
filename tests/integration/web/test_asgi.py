"""The ASGI middleware in uvicorn, over two databases: what the client hears, and what the databases hold."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import txpool
from tests.integration.web.served import Served, nothing_has_come
from tests.support.recovery_site import Site
from tests.support.waiting import until
from txpool.web.asgi import TransactionMiddleware

pytest.importorskip("greenlet")

COMMAND = ["uvicorn", "--host=127.0.0.1", "--port=0"]


@pytest.fixture(scope="module", params=["inner", "outer"])
def started(web_site: Site, request: pytest.FixtureRequest) -> Iterator[Served]:
    """Within the framework's own middlewares, and around all of it."""
    server = Served(web_site, [*COMMAND, f"tests.integration.web.asgi_app:{request.param}"])
    yield server
    server.stop()


@pytest.mark.parametrize("path", ["/transfer", "/threaded", "/upload", "/stream"])
def test_a_request_is_one_transaction(server: Served, path: str) -> None:
    assert server.ask(path) == (200, "one two" if path == "/stream" else "done")
    assert server.counts == (1, 1)


@pytest.mark.parametrize(("path", "status"), [("/conflict", 409), ("/failure", 500), ("/returned", 409)])
def test_an_error_rolls_back(server: Served, path: str, status: int) -> None:
    assert server.ask(path)[0] == status
    assert server.counts == (0, 0)
    assert server.site.databases.prepared() == []


def test_a_synchronous_call_in_the_loop_is_refused(server: Served) -> None:
    assert server.ask("/blocking")[0] == 500
    until(lambda: "await txpool.aconnect" in server.log)
    assert server.counts == (0, 0)


@pytest.mark.parametrize("path", ["/transfer", "/background"])
def test_a_failed_commit_is_no_success(server: Served, path: str) -> None:
    """And nothing runs that stands on it."""
    status, text = server.ask(f"{path}?background&arm=coordinator.prepared:raise")
    assert (status, "was rolled back" in text) == (503, True)
    assert server.ask("/alive", "GET") == (200, "yes")
    assert server.counts == (0, 0)
    assert server.site.databases.prepared() == []
    until(lambda: f"POST {path}: the application's answer is withheld" in server.log)


def test_in_doubt_is_neither_success_nor_rollback(server: Served) -> None:
    status, text = server.ask("/transfer?arm=log.recorded:raise&arm=log.abort:raise")
    assert (status, "is not certain" in text) == (500, True)
    until(lambda: "txpool.errors.TransactionInDoubt" in server.log)
    until(lambda: server.counts == (1, 1))


def test_nothing_leaves_before_the_decision_and_a_client_that_goes_away_changes_nothing(server: Served) -> None:
    with server.asking("/waiting") as client:
        server.waits()
        assert server.counts == (0, 0)
        assert server.ask("/alive", "GET") == (200, "yes")
        assert nothing_has_come(client)
    server.go()
    until(lambda: server.counts == (1, 1))


def test_a_stream_is_kept_until_the_decision(server: Served) -> None:
    with server.asking("/hanging") as client:
        server.waits()
        assert nothing_has_come(client)
        server.go()
        until(lambda: not nothing_has_come(client))
        assert server.counts == (1, 1)


def test_a_stream_that_its_client_has_left_rolls_back(server: Served) -> None:
    with server.asking("/hanging"):
        server.waits()
    until(lambda: working(server.site) == 0)
    server.go()
    assert server.ask("/transfer") == (200, "done")
    assert server.counts == (1, 1), "of the second request"


def test_a_client_that_goes_away_before_it_has_sent_its_request(server: Served) -> None:
    with server.asking("/upload", b'{"number": 1}', 100) as client:
        until(lambda: working(server.site) == 1)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answer:
            assert answer.readline().split()[1:2] in ([], [b"400"], [b"500"])
    until(lambda: working(server.site) == 0)
    assert server.counts == (0, 0)


def test_background_tasks_lie_outside(server: Served) -> None:
    """Also where another middleware runs them in a task of its own."""
    for path in ("/background", "/stream"):
        assert server.ask(f"{path}?background")[0] == 200
        until(lambda: server.counts == (3, 2))
        server.afresh()
    assert "AssertionError" not in server.log


@pytest.mark.parametrize(
    ("path", "why"),
    [("/endless", "more than max_body"), ("/events", "stream of events"), ("/short", "Content-Length says 2")],
)
def test_what_is_refused(server: Served, path: str, why: str) -> None:
    assert server.ask(path)[0] == 500
    until(lambda: why in server.log)
    assert server.counts == (0, 0)


def test_a_file(server: Served) -> None:
    assert server.ask("/file")[1] == (server.site.folder / "one.properties").read_text()
    assert server.counts == (1, 1)


def test_many_at_once(server: Served) -> None:
    with ThreadPoolExecutor(50) as clients:
        answers = list(clients.map(lambda _: server.ask("/transfer"), range(50)))
    assert {*answers} == {(200, "done")}
    assert server.counts == (50, 50)


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_what_is_no_http_is_passed_by(kind: str) -> None:
    passed: list[Any] = []

    async def app(*given: Any) -> None:
        passed.extend(given)
        assert txpool.current() is None

    given: Any = ({"type": kind}, object(), object())
    asyncio.run(TransactionMiddleware(app)(*given))
    assert all(each is other for each, other in zip(passed, given, strict=True))
    assert given[0] == {"type": kind}


def test_a_server_that_goes_down_cancels_what_is_not_decided(web_site: Site) -> None:
    server = Served(web_site, ["tests.integration.web.asgi_app"])
    server.afresh()
    try:
        with server.asking("/waiting"):
            server.waits()
            server.ask("/stop")
            assert server.process.wait(60) == 0
    finally:
        server.stop()
    assert (server.counts, server.site.databases.prepared()) == ((0, 0), [])


def working(site: Site) -> int:
    """How many sessions of a database are in a transaction."""
    where = "datname = current_database() and state = 'idle in transaction'"
    return int(site.databases.rows("one", f"select count(*) from pg_stat_activity where {where}")[0][0])
