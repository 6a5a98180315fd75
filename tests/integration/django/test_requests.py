"""ATOMIC_REQUESTS of several aliases: what the client is answered, and what each database holds."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from django.core.wsgi import get_wsgi_application
from django.test import Client

from tests.integration.django.conftest import Shop
from tests.support.waiting import until
from txpool import failpoints
from txpool.web.wsgi import TransactionMiddleware

ALL = [[1], [1], [1]]
NONE: list[list[int]] = [[], [], []]

Ask = Callable[[str], tuple[int, str]]


class Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def of_client() -> Iterator[Ask]:
    client = Client(raise_request_exception=False)

    def ask(path: str) -> tuple[int, str]:
        answer = client.get(path)
        return answer.status_code, answer.content.decode()

    yield ask


def of_server(application: Any) -> Iterator[Ask]:
    server = make_server("127.0.0.1", 0, application, handler_class=Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def ask(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    yield ask
    server.shutdown()
    thread.join(60)
    server.server_close()


@pytest.fixture(params=["client", "server", "middleware"])
def ask(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Ask]:
    if request.param == "client":
        yield from of_client()
    else:
        application = get_wsgi_application()
        yield from of_server(application if request.param == "server" else TransactionMiddleware(application))


def test_a_request_is_one_transaction(shop: Shop, ask: Ask) -> None:
    status, text = ask("/place/1")
    assert (status, "placed in txp1" in text) == (200, True)
    assert shop.all_numbers == ALL


@pytest.mark.parametrize("path", ["/place/1?fail", "/place/1?status=409"])
def test_an_error_rolls_back(shop: Shop, ask: Ask, path: str) -> None:
    assert ask(path)[0] >= 400
    assert shop.all_numbers == NONE


def test_a_failed_commit_is_an_error_of_the_server(shop: Shop, ask: Ask) -> None:
    status, text = ask("/place/1?arm=coordinator.prepared:raise")
    assert (status, "was rolled back" in text) == (503, True)
    assert shop.all_numbers == NONE
    failpoints.disarm()
    assert ask("/place/1")[0] == 200
    assert shop.all_numbers == ALL


def test_in_doubt_is_an_error_that_says_so(shop: Shop, ask: Ask) -> None:
    status, text = ask("/place/1?only=default&only=two&arm=log.recorded:raise&arm=log.abort:raise")
    assert (status, "is not certain" in text, "rolled back" in text) == (500, True, False)
    failpoints.disarm()
    until(lambda: shop.all_numbers == [[1], [1], []])


def test_an_asynchronous_view_is_refused_by_django(shop: Shop) -> None:
    with pytest.raises(RuntimeError, match="ATOMIC_REQUESTS with async views"):
        Client().get("/asynchronous")
