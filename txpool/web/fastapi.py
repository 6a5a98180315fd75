"""A FastAPI dependency by which each request is one transaction, decided before its answer.

FastAPI runs both halves of a synchronous dependency that yields in threads, each in a copy of the request's context: a
transaction that began there would not be ambient in the endpoint. This dependency is asynchronous, and so begins the
transaction in the request's own context, of which the endpoint's thread gets a copy. For an endpoint that is `def` it
waits for databases in threads; for one that is `async def`, in the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import re
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

from txpool.errors import ConfigurationError, ProgrammingError
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.functions import origin_of
from txpool.tm.manager import get_manager
from txpool.tm.transaction import Transaction
from txpool.web.responses import TRANSACTION

try:
    from anyio import CancelScope, CapacityLimiter, to_thread
    from anyio.lowlevel import RunVar
    from fastapi import Depends, __version__
    from fastapi.requests import HTTPConnection
except ImportError as error:
    raise ConfigurationError(
        "transactions of FastAPI's requests need fastapi, which is not installed: pip install 'txpool[fastapi]'"
    ) from error

logger = logging.getLogger("txpool")


def require_version(version: str) -> None:
    """ConfigurationError if this FastAPI ends dependencies only after the response is sent."""
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < (0, 121, 1):
        raise ConfigurationError(
            f"FastAPI {version} would commit after the answer is sent; from 0.121.1 on it can commit before: "
            "pip install 'txpool[fastapi]'"
        )


require_version(__version__)

#: Limits how many requests of an event loop have a transaction.
_limiter: RunVar[CapacityLimiter] = RunVar("txpool.web.fastapi")


def in_transaction(timeout: float | None = None) -> Any:
    """A dependency that makes each request one transaction of its own; its value is the Transaction.

    Name it best in an endpoint's `dependencies=[in_transaction()]`, or a router's: these run before the dependencies of
    the parameters. It commits when the endpoint has returned its response, before any of it is sent; an exception of
    the endpoint, an HTTPException too, rolls back. A response that is returned commits, whatever its status. A commit
    that fails is raised, and so becomes an error of the server. The body of a StreamingResponse and background tasks
    run after the end, outside the transaction. `timeout` in seconds is the transaction's. At most as many requests have
    a transaction at a time as `def` endpoints have threads; the others wait before theirs begins.

    For an endpoint that is `async def`, the transaction is the task's, as of `async with txpool.transaction()`.

    Errors, before anything is done: ProgrammingError for a request to an endpoint that yields its answer, or that is a
    WebSocket's; ConfigurationError for an `async def` endpoint if greenlet is not installed.
    """

    async def in_transaction(connection: HTTPConnection) -> AsyncIterator[Transaction]:
        outer = connection.scope.get(TRANSACTION)
        if isinstance(outer, Transaction) and outer is current():  # another dependency has begun it, and will end it
            yield outer
            return
        endpoint = connection.scope["endpoint"]
        asynchronous = _is_asynchronous(endpoint, connection.scope["type"])
        asyncio.get_running_loop()  # an error under trio, before anything is done
        if asynchronous:
            async with _in_task(connection, timeout, endpoint) as begun:
                yield begun
            return
        async with _limited(connection):
            # In a thread, since the log may have to be opened.
            begun = await to_thread.run_sync(lambda: get_manager().new_transaction(timeout))
            begun.origin = origin_of(endpoint)
            # It becomes ambient also if another is, as when the server was started within a transaction.
            block = transaction.entered(begun)
            connection.scope[TRANSACTION] = begun
            try:
                yield begun
            except BaseException as error:
                await _leave(block, error)
                raise
            await _leave(block, None)

    return Depends(in_transaction, scope="function")


@asynccontextmanager
async def _limited(request: HTTPConnection) -> AsyncIterator[None]:
    """Around a request with a transaction: wait until there are fewer of them than endpoints have threads.

    FastAPI runs each dependency, the endpoint, and the check of its result in a thread. A request that waits for a
    thread may hold what the requests in all threads wait for: a row's lock, or the pool's connections. While no more
    requests have a transaction than there are threads, it gets one.
    """
    threads = to_thread.current_default_thread_limiter().total_tokens
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = CapacityLimiter(threads)
        _limiter.set(limiter)
    limiter.total_tokens = threads  # which a program may change at any time
    await limiter.acquire_on_behalf_of(request)
    try:
        yield
    finally:
        limiter.release_on_behalf_of(request)


@asynccontextmanager
async def _in_task(request: HTTPConnection, timeout: float | None, endpoint: Any) -> AsyncIterator[Transaction]:
    from txpool.aio.block import begin, dismiss

    block = await begin(timeout, origin_of(endpoint))
    request.scope[TRANSACTION] = block.entered_transaction
    try:
        try:
            yield block.entered_transaction
        except BaseException as error:
            await dismiss(block, error)
            raise
        await dismiss(block, None)
    finally:
        block.leave_context()


def _is_asynchronous(endpoint: Any, kind: str) -> bool:
    """Whether the endpoint is `async def`. ProgrammingError if it cannot be one transaction."""
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    if not inspect.isroutine(endpoint):
        endpoint = getattr(type(endpoint), "__call__", endpoint)  # noqa: B004 - what the call is
    name = getattr(endpoint, "__qualname__", repr(endpoint))
    functions = endpoint, inspect.unwrap(endpoint)
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in functions):
        raise ProgrammingError(
            f"{name}() is an endpoint that yields, and its body would run after the end of its transaction, or "
            "beside that: return an answer, or work in a `with txpool.transaction()` of its own. Nothing was done"
        )
    if kind == "websocket":
        raise ProgrammingError(
            f"{name}() is a WebSocket's, and would answer before its transaction is decided: write `async with "
            "txpool.transaction()` around the work for each message. Nothing was done"
        )
    return any(inspect.iscoroutinefunction(each) for each in functions)


async def _leave(block: transaction, error: BaseException | None) -> None:
    if isinstance(error, asyncio.CancelledError):
        block.entered_transaction.abandoned = True  # the endpoint's thread goes on
    if not block.must_end(error):
        return
    try:
        await _to_its_end(block, error)
    finally:
        block.leave_context()


async def _to_its_end(block: transaction, error: BaseException | None) -> None:
    """End the transaction in a thread of its own, since those of the endpoints may all wait for its locks.

    A server that shuts down cancels its requests: the cancellation is raised once the transaction has ended.
    """
    ended: Future[None] = Future()

    def end() -> None:
        try:
            block.end(error)
        except BaseException as failure:
            ended.set_exception(failure)
        else:
            ended.set_result(None)

    try:
        threading.Thread(target=copy_context().run, args=(end,), name="txpool-end").start()
    except RuntimeError:  # no thread can be started: end it here, so that its locks are released
        end()
    outcome, cancelled = asyncio.wrap_future(ended), None
    with CancelScope(shield=True):
        while not outcome.done():
            try:
                await asyncio.wait([outcome])
            except asyncio.CancelledError as cancellation:
                cancelled = cancellation
    if cancelled is not None:
        if outcome.exception() is not None:
            logger.error("a request was cancelled while its transaction ended", exc_info=outcome.exception())
        raise cancelled
    outcome.result()
