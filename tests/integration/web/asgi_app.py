"""What uvicorn serves: a Starlette application behind the middleware."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import txpool
from tests.integration.web.served import ainsert, arm, await_go, configure, insert
from txpool.web.asgi import TransactionMiddleware

logging.basicConfig(level=logging.INFO)
configure()


async def alive(request: Request) -> Response:
    assert txpool.current() is None, "it is excluded"
    return PlainTextResponse("yes")


async def transfer(request: Request) -> Response:
    arm(request.url.query)
    await ainsert("one", "two")
    assert request.scope["txpool.transaction"] is txpool.current()
    return PlainTextResponse("done")


async def waiting(request: Request) -> Response:
    await ainsert("one", "two")
    await await_go()
    return PlainTextResponse("done")


def threaded(request: Request) -> Response:
    insert("one", "two")
    return PlainTextResponse("done")


async def blocking(request: Request) -> Response:
    insert("one", "two")
    return PlainTextResponse("done")


async def conflict(request: Request) -> Response:
    await ainsert("one", "two")
    raise HTTPException(409)


async def failure(request: Request) -> Response:
    await ainsert("one", "two")
    raise ZeroDivisionError


async def returned(request: Request) -> Response:
    await ainsert("one", "two")
    return JSONResponse({}, status_code=409)


async def upload(request: Request) -> Response:
    await ainsert("one", "two")
    await request.body()
    return PlainTextResponse("done")


async def stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one "
        await ainsert("one", "two")
        yield b"two"

    return StreamingResponse(parts(), background=_background(request))


async def endless(request: Request) -> Response:
    await ainsert("one", "two")

    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    return StreamingResponse(parts())


async def hanging(request: Request) -> Response:
    await ainsert("one", "two")

    async def parts() -> AsyncIterator[bytes]:
        yield b"one "
        await await_go()
        yield b"two"

    return StreamingResponse(parts())


async def events(request: Request) -> Response:
    await ainsert("one", "two")
    return Response("data: 1\n\n", media_type="text/event-stream")


async def short(request: Request) -> Response:
    await ainsert("one", "two")
    return Response("x", headers={"content-length": "2"})


async def file(request: Request) -> Response:
    await ainsert("one", "two")
    return FileResponse("one.properties")


def _background(request: Request) -> BackgroundTask | None:
    async def later() -> None:
        assert txpool.current() is None
        await ainsert("one", number=7)
        async with txpool.transaction():
            await ainsert("one", "two", number=8)

    return BackgroundTask(later) if "background" in request.url.query else None


async def background(request: Request) -> Response:
    arm(request.url.query)
    await ainsert("one", "two")
    return PlainTextResponse("done", background=_background(request))


class Passing(BaseHTTPMiddleware):
    """One of those that run what is within in a task of its own."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        return response


ENDPOINTS = [transfer, waiting, threaded, blocking, conflict, failure, returned, upload, stream, endless, hanging]
ENDPOINTS += [events, short, file, background]
routes = [Route(f"/{each.__name__}", each, methods=["POST"]) for each in ENDPOINTS]
routes.append(Route("/alive", alive))
middleware = Middleware(TransactionMiddleware, exclude=lambda scope: scope["path"] == "/alive")
#: Within the framework's own middlewares, and around all of it.
inner = Starlette(routes=routes, middleware=[Middleware(Passing), middleware])
outer = TransactionMiddleware(
    Starlette(routes=routes, middleware=[Middleware(Passing)]), exclude=lambda scope: scope["path"] == "/alive"
)

# -- a program that serves it, and can be told to go down ------------------------------------------------------------

if __name__ == "__main__":
    server = uvicorn.Server(uvicorn.Config(inner, port=0, timeout_graceful_shutdown=1))

    async def stop(request: Request) -> Response:
        server.should_exit = True
        return PlainTextResponse("")

    inner.router.routes.append(Route("/stop", stop, methods=["POST"]))
    server.run()
