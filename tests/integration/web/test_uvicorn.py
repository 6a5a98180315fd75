"""The FastAPI dependency in uvicorn, over two databases: what the client hears, and what the databases hold."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import FastAPI
from websockets.sync.client import connect

import txpool
from tests.integration.web.served import Served, nothing_has_come
from tests.support.recovery_site import PASSWORD, Site
from tests.support.waiting import until
from txpool.web.fastapi import in_transaction

COMMAND = ["uvicorn", "--host=127.0.0.1", "--port=0", "tests.integration.web.fastapi_app:app"]

FAILING = [
    ("/conflict", 409),
    ("/failure", 500),
    ("/invalid", 500),
    ("/awaited/conflict", 409),
    ("/awaited/invalid", 500),
]


@pytest.fixture(scope="module")
def started(web_site: Site) -> Iterator[Served]:
    url = web_site.databases.url("two")
    web_site.write(
        "strict", f"driver = psycopg\nurl = {url}\npassword = ${{env:{PASSWORD}}}\ntransaction.required = strict"
    )
    server = Served(web_site, COMMAND)
    yield server
    server.stop()


@pytest.mark.parametrize("path", ["/transfer", "/dependent", "/awaited", "/called", "/threaded"])
def test_a_request_is_one_transaction(server: Served, path: str) -> None:
    assert server.ask(path) == (200, '"done"')
    assert server.counts == (1, 1)


@pytest.mark.parametrize(("path", "status"), FAILING)
def test_an_exception_rolls_back(server: Served, path: str, status: int) -> None:
    assert server.ask(path)[0] == status
    assert server.counts == (0, 0)
    assert server.site.databases.prepared() == []


def test_an_answer_that_is_returned_commits(server: Served) -> None:
    assert server.ask("/returned")[0] == 409
    assert server.counts == (1, 1)


def test_each_message_of_a_websocket_is_a_transaction_of_its_own(server: Served) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/socket", close_timeout=60, open_timeout=60) as client:
        client.send("7")
        assert client.recv(60) == "done"
        client.send("-1")
        assert client.recv(60) == "not done"
    assert server.counts == (1, 1)


@pytest.mark.parametrize("path", ["/transfer", "/awaited"])
def test_a_failed_commit_is_no_success(server: Served, path: str) -> None:
    assert server.ask(f"{path}?background&arm=coordinator.prepared:raise") == (500, "Internal Server Error")
    assert server.counts == (0, 0)
    assert server.site.databases.prepared() == []
    until(lambda: "txpool.errors.TransactionRolledBack" in server.log)


@pytest.mark.parametrize("path", ["/transfer", "/awaited"])
def test_in_doubt_is_neither_success_nor_rollback(server: Served, path: str) -> None:
    answer = server.ask(f"{path}?arm=log.recorded:raise&arm=log.abort:raise")
    assert answer == (500, "Internal Server Error")
    until(lambda: "txpool.errors.TransactionInDoubt" in server.log)
    until(lambda: server.counts == (1, 1))


def test_nothing_leaves_before_the_decision_and_a_client_that_goes_away_changes_nothing(server: Served) -> None:
    with server.asking("/transfer?arm=coordinator.prepared:wait") as client:
        server.waits()
        assert len(server.site.databases.prepared()) == 2
        assert server.ask("/alive", "GET") == (200, '"yes"'), "the event loop is held"
        assert nothing_has_come(client)
    server.go()
    until(lambda: server.counts == (1, 1))


def test_a_client_that_goes_away_before_that(server: Served) -> None:
    with server.asking("/wait"):
        server.waits()
        assert server.counts == (0, 0)
    server.go()
    until(lambda: server.counts == (3, 3))


def test_a_client_that_goes_away_before_it_has_sent_its_request(server: Served) -> None:
    with server.asking("/upload", b'{"number": 1}', 100) as client:
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answer:
            assert answer.readline().split()[1:2] in ([], [b"400"])
    assert server.counts == (0, 0)


@pytest.mark.parametrize("path", ["/count", "/counted", "/awaited/count"])
def test_who_has_locked_a_row_waits_for_no_thread_that_waits_for_it(server: Served, path: str) -> None:
    """More requests than endpoints have threads want the row that the first of them has locked; that one must end."""
    server.site.databases.execute("one", "insert into t values (0)")
    with ThreadPoolExecutor(60) as clients:
        answers = list(clients.map(lambda _: server.ask(path)[0], range(60)))
    assert answers == [200] * 60
    assert server.site.databases.rows("one", "select id from t") == [(60,)]


def test_the_body_of_a_stream_lies_outside(server: Served) -> None:
    with server.asking("/stream") as client, client.makefile("rb") as answer:
        said = answer.read().decode()
    assert "None; " in said
    assert "has ended (committed)" in said
    assert server.site.databases.rows("one", "select id from t") == [(1,)]
    assert server.site.databases.rows("two", "select id from t") == [(3,)], "it was no part of what it was sent after"


def test_background_tasks_of_an_asynchronous_endpoint(server: Served) -> None:
    assert server.ask("/awaited?background") == (200, '"done"')
    until(lambda: server.counts == (2, 1))


def test_background_tasks_lie_outside(server: Served) -> None:
    assert server.ask("/background") == (200, '"done"')
    until(lambda: server.counts == (1, 1))


def test_a_websocket_is_refused() -> None:
    app = FastAPI()

    @app.websocket("/socket", dependencies=[in_transaction()])
    async def endpoint() -> None:
        raise AssertionError

    scope = {"type": "websocket", "path": "/socket", "headers": [], "query_string": b""}
    with pytest.raises(txpool.ProgrammingError, match="around the work for each message"):
        asyncio.run(app(scope, None, None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/asynchronous", "this synchronous call in it would hold the loop: write `await txpool.aconnect"),
        ("/yielding", "yielding() is an endpoint that yields"),
    ],
)
def test_what_is_refused(server: Served, path: str, why: str) -> None:
    assert server.ask(path)[0] == 500
    until(lambda: why in server.log)
    assert server.counts == (0, 0)


def test_a_synchronous_dependency_of_ones_own_leaves_the_endpoint_outside_and_says_no_more_than_that(
    server: Served,
) -> None:
    assert server.ask("/trap") == (200, '"done"')
    assert server.counts == (0, 1)
    said = "what was done within it was rolled back. What other code did meanwhile may have been outside of it"
    until(lambda: re.search(f"ProgrammingError: the block of .*{said}", server.log))


def test_strict_finds_that(server: Served) -> None:
    assert server.ask("/strict")[0] == 500
    assert server.counts == (0, 0)
    until(lambda: "datasource strict: a statement outside any transaction" in server.log)


# -- a server that goes down, and gives what still runs a second ------------------------------------------------------


@pytest.mark.parametrize("path", ["/wait", "/awaited/wait"])
def test_a_program_that_goes_down_cancels_an_endpoint_whose_thread_goes_on(web_site: Site, path: str) -> None:
    """In no transaction, and in none of its own either: that would be a half of the request."""
    server = Served(web_site, ["tests.integration.web.fastapi_app"])
    server.afresh()
    try:
        with server.asking(path) as client, client.makefile("rb") as answer:
            server.waits()
            server.ask("/stop")
            until(lambda: "Cancel 1 running task" in server.log)
            until(lambda: working(web_site) == 0)
            assert b"200" not in answer.readline()
            server.go()
            assert server.process.wait(60) == 0
    finally:
        server.stop()
    assert server.counts == (0, 0)


@pytest.mark.costly
def test_a_program_that_goes_down_hears_the_outcome_first(web_site: Site) -> None:
    """Which nobody else would say: the request is cancelled."""
    server = Served(web_site, ["tests.integration.web.fastapi_app"])
    server.afresh()
    try:
        with server.asking("/transfer?arm=coordinator.prepared:wait&arm=log.recorded:raise&arm=log.abort:raise"):
            server.waits()
            server.ask("/stop")
            until(lambda: "Cancel 1 running task" in server.log)
            server.go()
            assert server.process.wait(60) == 0
    finally:
        server.stop()
    assert "a request was cancelled while its transaction ended" in server.log
    assert "txpool.errors.TransactionInDoubt" in server.log
    web_site.manager().scan()
    assert (server.counts, server.site.databases.prepared()) == ((1, 1), [])


@pytest.mark.costly
def test_a_server_that_does_not_wait_for_the_outcome_leaves_it_to_recovery(web_site: Site) -> None:
    server = Served(web_site, [*COMMAND, "--timeout-graceful-shutdown=1"])
    server.afresh()
    try:
        with server.asking("/transfer?arm=coordinator.prepared:wait"):
            server.waits()
            server.process.terminate()
            assert server.process.wait(60) != 0
    finally:
        server.stop()
    assert len(server.site.databases.prepared()) == 2
    web_site.manager().scan()
    assert (server.counts, server.site.databases.prepared()) == ((0, 0), [])


def working(site: Site) -> int:
    """How many sessions are in a transaction."""
    found = site.databases.rows("one", "select count(*) from pg_stat_activity where state = 'idle in transaction'")
    return int(found[0][0])
