"""What hypercorn serves: a Litestar application behind the middleware."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from litestar import Litestar, Request, WebSocket, get, post, websocket
from litestar.background_tasks import BackgroundTask
from litestar.exceptions import ClientException
from litestar.response import Response, Stream

import txpool
from tests.integration.web.served import ainsert, arm, await_go, configure
from txpool.web.asgi import TransactionMiddleware

logging.basicConfig(level=logging.INFO)
configure()


@get("/loop")
async def loop() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@post("/transfer")
async def transfer(request: Request[Any, Any, Any]) -> str:
    arm(request.url.query)
    await ainsert("one", "two")
    return "done"


@post("/failure")
async def failure() -> None:
    await ainsert("one", "two")
    raise ClientException


@post("/waiting")
async def waiting() -> str:
    await ainsert("one", "two")
    await await_go()
    return "done"


@post("/stream")
async def stream() -> Stream:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one "
        await ainsert("one")
        await await_go()
        await ainsert("two")
        yield b"two"

    return Stream(parts)


@post("/background")
async def background() -> Response[str]:
    async def later() -> None:
        assert txpool.current() is None
        async with txpool.transaction():
            await ainsert("one", "two", number=8)

    await ainsert("one", "two")
    return Response("done", background=BackgroundTask(later))


@websocket("/socket")
async def socket(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    for _ in range(2):
        number = int(await socket.receive_text())
        assert txpool.current() is None
        try:
            async with txpool.transaction():
                await ainsert("one", "two", number=number)
                if number < 0:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            await socket.send_text("not done")
        else:
            await socket.send_text("done")
    await socket.close()


app = TransactionMiddleware(Litestar([loop, transfer, failure, waiting, stream, background, socket]))
