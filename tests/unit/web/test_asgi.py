"""What the ASGI middleware refuses before the decision, since a server would refuse it behind that."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import txpool

pytest.importorskip("greenlet")

START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"done"}


def answered(*messages: dict[str, Any]) -> tuple[list[dict[str, Any]], txpool.Status]:
    """What the server gets of these, and how the request's transaction has ended."""
    from txpool.web.asgi import TransactionMiddleware

    sent: list[dict[str, Any]] = []
    begun: list[txpool.Transaction] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["txpool.transaction"])
        for message in messages:
            await send(message)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/"}
    with suppress(txpool.ProgrammingError):
        asyncio.run(TransactionMiddleware(app)(scope, asyncio.Event().wait, send))  # type: ignore[arg-type]
    return sent, begun[0].status


def test_what_can_be_sent() -> None:
    headers = [(b"x-a", b"b\tc \xe4"), (b"X_1", b"")]
    start = {**START, "headers": headers}
    assert answered(start, BODY) == ([start, BODY], txpool.Status.COMMITTED)


@pytest.mark.parametrize(
    "header",
    [
        (b"x-a", b"b\rc"),
        (b"x-a", b"b\nc"),
        (b"x-a", b"b\0"),
        (b"x-a", b"\x7f"),
        (b"x a", b"b"),
        (b"", b"b"),
        ("x-a", b"b"),
    ],
)
def test_a_header(header: tuple[bytes, bytes]) -> None:
    assert answered({**START, "headers": [header]}, BODY) == ([], txpool.Status.ROLLED_BACK)


@pytest.mark.parametrize("status", [0, 99, 100, 199, 600])
def test_a_status(status: int) -> None:
    assert answered({**START, "status": status}, BODY) == ([], txpool.Status.ROLLED_BACK)


@pytest.mark.parametrize("name", ["exclude", "rollback_on_status"])
def test_a_function_that_nobody_awaits(name: str) -> None:
    """A coroutine is true: all requests would be excluded, or roll back, whatever they answer."""
    from txpool.web.asgi import TransactionMiddleware

    async def never(_: object) -> bool:
        return False

    options: Any = {name: never}
    with pytest.raises(txpool.ProgrammingError, match=f"{name}=.*nobody awaits a coroutine function"):
        TransactionMiddleware(never, **options)  # type: ignore[arg-type]


def test_a_body_of_text() -> None:
    assert answered(START, {**BODY, "body": "done"}) == ([], txpool.Status.ROLLED_BACK)
