"""A block of another task, or of a thread, that has joined the transaction: all of it commits, or nothing does."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases
from txpool.web.asgi import TransactionMiddleware


async def insert(source: txpool.DataSource, value: int) -> None:
    async with await txpool.aconnect(source) as connection:
        await connection.execute("insert into t values (%s)", (value,))


async def in_a_block(two: TwoDatabases, begun: asyncio.Event, over: asyncio.Event) -> None:
    async with txpool.transaction():
        await insert(two.one, 1)
        begun.set()
        await over.wait()
        await insert(two.two, 1)


def in_a_function(two: TwoDatabases, begun: asyncio.Event, over: asyncio.Event) -> Any:
    @txpool.transactional
    async def work() -> None:
        await insert(two.one, 1)
        begun.set()
        await over.wait()
        await insert(two.two, 1)

    return work()


def in_a_thread(two: TwoDatabases, begun: asyncio.Event, over: asyncio.Event) -> Any:
    loop = asyncio.get_running_loop()

    def work() -> None:
        with txpool.transaction():
            two.one.connect().execute("insert into t values (1)")
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(over.wait(), loop).result()
            two.two.connect().execute("insert into t values (1)")

    return asyncio.to_thread(work)


@pytest.mark.parametrize("inner", [in_a_block, in_a_function, in_a_thread])
def test_one_that_is_not_awaited(two: TwoDatabases, inner: Any) -> None:
    """Else the half of it would commit with the transaction, and the other half would be refused."""

    async def main() -> None:
        begun, over = asyncio.Event(), asyncio.Event()
        with pytest.raises(txpool.TransactionRolledBack, match="a block that had joined it was still open"):
            async with txpool.transaction():
                child = asyncio.ensure_future(inner(two, begun, over))
                await two.insert(2)
                await begun.wait()
        over.set()
        with pytest.raises(txpool.ProgrammingError, match="it can take no more work"):
            await child

    asyncio.run(main())
    assert (two.held(1), two.held(2), two.prepared) == ((0, 0), (0, 0), [])


@pytest.mark.parametrize("inner", [in_a_block, in_a_function, in_a_thread])
def test_one_that_is_awaited(two: TwoDatabases, inner: Any) -> None:
    async def main() -> None:
        async with txpool.transaction(), asyncio.TaskGroup() as group:
            begun, over = asyncio.Event(), asyncio.Event()
            group.create_task(inner(two, begun, over))
            await begun.wait()
            over.set()

    asyncio.run(main())
    assert two.held(1) == (1, 1)


@pytest.mark.parametrize(("status", "answered"), [(200, 503), (404, 404)])
def test_one_of_a_request(two: TwoDatabases, status: int, answered: int) -> None:
    """The answer is sent while it is open, and the request goes on behind that, as with background tasks."""
    sent: list[MutableMapping[str, Any]] = []

    async def main() -> None:
        begun, over = asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            child = asyncio.ensure_future(in_a_block(two, begun, over))
            await begun.wait()
            try:
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send({"type": "http.response.body", "body": b"done"})
            finally:
                over.set()
                with pytest.raises(txpool.ProgrammingError, match="it can take no more work"):
                    await child

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/"}
        await TransactionMiddleware(app)(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]

    asyncio.run(main())
    assert sent[0]["status"] == answered
    assert (two.held(1), two.prepared) == ((0, 0), [])
