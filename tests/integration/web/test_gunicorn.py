"""TransactionMiddleware in gunicorn, over two databases: what the client hears, and what the databases hold."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from tests.integration.web.served import Served, nothing_has_come
from tests.support.recovery_site import Site
from tests.support.waiting import until

WORKERS = {
    "sync": ["--workers=1"],
    "gthread": ["--workers=2", "--threads=4", "--worker-class=gthread", "--preload"],
}


@pytest.fixture(scope="module", params=WORKERS)
def started(request: pytest.FixtureRequest, web_site: Site) -> Iterator[Served]:
    command = [
        "gunicorn",
        "--bind=127.0.0.1:0",
        "--no-control-socket",
        *WORKERS[request.param],
        "tests.integration.web.wsgi_app:application",
    ]
    server = Served(web_site, command)
    yield server
    server.stop()


@pytest.mark.parametrize("path", ["/transfer", "/generate", "/flask/transfer"])
def test_a_request_is_one_transaction(server: Served, path: str) -> None:
    assert server.ask(path) == (200, "one two" if path == "/generate" else "done")
    assert server.counts == (1, 1)


@pytest.mark.parametrize(("path", "status"), [("/flask/conflict", 409), ("/flask/failure", 500), ("/endless", 500)])
def test_an_error_rolls_back(server: Served, path: str, status: int) -> None:
    assert server.ask(path)[0] == status
    assert server.counts == (0, 0)
    assert server.site.databases.prepared() == []


def test_a_failed_commit_is_no_success(server: Served) -> None:
    status, text = server.ask("/transfer?arm=coordinator.prepared:raise")
    assert (status, "was rolled back" in text) == (503, True)
    assert server.counts == (0, 0)
    assert server.site.databases.prepared() == []
    assert "POST /transfer: the application's answer is withheld" in server.log


def test_in_doubt_is_neither_success_nor_rollback(server: Served) -> None:
    status, text = server.ask("/transfer?arm=log.recorded:raise&arm=log.abort:raise")
    assert (status, "is not certain" in text, "rolled back" in text) == (500, True, False)
    until(lambda: server.counts == (1, 1))


def test_nothing_leaves_before_the_decision_and_a_client_that_goes_away_changes_nothing(server: Served) -> None:
    with server.asking("/transfer?arm=coordinator.prepared:wait") as client:
        server.waits()
        assert len(server.site.databases.prepared()) == 2
        assert nothing_has_come(client)
    server.go()
    until(lambda: server.counts == (1, 1))
    assert server.ask("/transfer") == (200, "done")


def test_a_client_that_goes_away_before_that(server: Served) -> None:
    with server.asking("/wait"):
        server.waits()
        assert server.counts == (0, 0)
    server.go()
    until(lambda: server.counts == (1, 1))


@pytest.mark.parametrize("path", ["/upload", "/flask/upload"])
def test_a_client_that_goes_away_before_it_has_sent_its_request(server: Served, path: str) -> None:
    """gunicorn hands on what has come as if it were all."""
    with server.asking(path, b"1", 100) as client:
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answer:
            assert answer.readline().split()[1:2] in ([], [b"500"])
    assert server.counts == (0, 0)


@pytest.mark.parametrize(("point", "left"), [("coordinator.prepared", (0, 0)), ("coordinator.decided", (1, 1))])
def test_a_worker_that_is_killed_between_prepare_and_commit(server: Served, point: str, left: tuple[int, int]) -> None:
    before = server.log.count("SIGKILL")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        server.ask(f"/transfer?arm={point}:kill")
    # The client's connection may be closed before the lock by which recovery tells who lives.
    until(lambda: server.log.count("SIGKILL") > before)
    assert len(server.site.databases.prepared()) == 2
    server.site.manager().scan()
    assert (server.counts, server.site.databases.prepared()) == (left, [])
    assert server.ask("/transfer") == (200, "done")


def test_no_connection_goes_along_into_a_forked_worker(server: Served) -> None:
    parents, mine = server.ask("/session")[1].split()
    preloaded = "--preload" in server.process.args  # type: ignore[operator]
    assert (parents != mine) == preloaded
