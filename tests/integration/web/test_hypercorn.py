"""Litestar behind the middleware in hypercorn, over asyncio's own loop and over uvloop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from websockets.sync.client import connect

from tests.integration.web.served import Served, nothing_has_come
from tests.support.recovery_site import Site
from tests.support.waiting import until

pytest.importorskip("greenlet")

COMMAND = ["hypercorn", "--workers=0", "--bind=127.0.0.1:0", "--error-logfile=-"]
APP = "tests.integration.web.litestar_app:app"


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def started(web_site: Site, request: pytest.FixtureRequest) -> Iterator[Served]:
    server = Served(web_site, [*COMMAND, f"--worker-class={request.param}", APP])
    assert server.ask("/loop", "GET") == (200, request.param)
    yield server
    server.stop()


@pytest.mark.costly
def test_a_request_is_one_transaction(server: Served) -> None:
    assert server.ask("/transfer") == (201, "done")
    assert server.counts == (1, 1)
    assert server.ask("/failure")[0] == 400
    assert server.counts == (1, 1)
    assert server.ask("/transfer?arm=coordinator.prepared:raise")[0] == 503
    assert server.counts == (1, 1)
    assert server.site.databases.prepared() == []


def test_nothing_leaves_before_the_decision(server: Served) -> None:
    """Of an answer, and of a stream's first part."""
    for number, path in enumerate(("/waiting", "/stream"), 1):
        with server.asking(path) as client:
            server.waits()
            assert nothing_has_come(client)
            server.go()
            until(lambda client=client: not nothing_has_come(client))  # type: ignore[misc]
            assert server.counts == (number, number)
        for name in ("waiting", "go"):
            (server.site.folder / name).unlink(missing_ok=True)


def test_a_client_that_goes_away(server: Served) -> None:
    """Hypercorn does not cancel the request: an application that is not told, since it reads nothing, goes on."""
    with server.asking("/waiting"):
        server.waits()
        assert server.counts == (0, 0)
    server.go()
    assert server.ask("/transfer") == (201, "done")
    until(lambda: server.counts == (2, 2))
    assert server.site.databases.prepared() == []


def test_background_tasks_lie_outside(server: Served) -> None:
    assert server.ask("/background") == (201, "done")
    until(lambda: server.counts == (2, 2))


def test_each_message_of_a_websocket_is_a_transaction_of_its_own(server: Served) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/socket", close_timeout=60, open_timeout=60) as client:
        client.send("7")
        assert client.recv(60) == "done"
        client.send("-1")
        assert client.recv(60) == "not done"
    assert server.counts == (1, 1)


@pytest.mark.costly
def test_a_server_that_goes_down_leaves_nothing_half(web_site: Site) -> None:
    server = Served(web_site, [*COMMAND, "--graceful-timeout=1", APP])
    server.afresh()
    try:
        with server.asking("/waiting"):
            server.waits()
            server.process.terminate()
            assert server.process.wait(60) is not None
    finally:
        server.stop()
    assert (server.counts, server.site.databases.prepared()) == ((0, 0), [])
