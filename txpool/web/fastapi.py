"""A FastAPI dependency by which each request to a synchronous endpoint is one transaction, decided before its answer.

FastAPI runs a synchronous dependency that yields in threads, each half in a copy of the request's context: a
transaction that began there would be unknown to the endpoint. This one is asynchronous, and so enters the request's own
context, of which the endpoint's thread gets a copy. What waits for a database does so in a thread.
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
from txpool.tm.manager import get_manager
from txpool.tm.scope import origin_of, transaction
from txpool.tm.transaction import Transaction

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
    """ConfigurationError where FastAPI ends what a decorator's `dependencies` name after the answer is sent."""
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < (0, 121, 1):
        raise ConfigurationError(
            f"FastAPI {version} would commit after the answer is sent, and 0.121.1 is the first that can do it before: "
            "pip install 'txpool[fastapi]'"
        )


require_version(__version__)

#: In a request's scope: its Transaction.
TRANSACTION = "txpool.transaction"

#: Of an event loop: who has a transaction.
_places: RunVar[CapacityLimiter] = RunVar("txpool.web.fastapi")


def in_transaction(timeout: float | None = None) -> Any:
    """A dependency that makes each request one transaction of its own; its value is the Transaction.

    Best among an endpoint's `dependencies=[in_transaction()]`, which come before its parameters' own, or a router's. It
    commits when the endpoint's answer is made, and before any of it is sent; an exception of the endpoint, an
    HTTPException too, rolls back. An answer that is returned commits, whatever its status. A commit that fails is
    raised, and so an error of the server's. The body of a StreamingResponse and background tasks come after the end,
    outside. `timeout` in seconds is the transaction's. No more requests are in one at a time than endpoints have
    threads: the others wait, and nothing is begun for them.

    Errors: for a request to an endpoint that is asynchronous, or that yields its answer, ProgrammingError, before
    anything is done.
    """

    async def in_transaction(connection: HTTPConnection) -> AsyncIterator[Transaction]:
        known = connection.scope.get(TRANSACTION)
        if isinstance(known, Transaction) and known is current():  # another dependency's, which will end it
            yield known
            return
        endpoint = connection.scope["endpoint"]
        _require_synchronous(endpoint)
        asyncio.get_running_loop()  # an error under trio, before anything is done
        async with _place(connection):
            # In a thread, since the log may have to be opened.
            begun = await to_thread.run_sync(lambda: get_manager().new_transaction(timeout))
            begun.origin = origin_of(endpoint)
            # Whatever was ambient where the server started is none of this request's.
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
async def _place(request: HTTPConnection) -> AsyncIterator[None]:
    """One of as many places as endpoints have threads.

    FastAPI runs each dependency and the endpoint in a thread, and checks what that returns in one. Who comes to the
    next of these steps may hold what all others wait for, in their threads: a row, or the pool's connections. While no
    more have a transaction than there are threads, one is left for that step.
    """
    threads = to_thread.current_default_thread_limiter().total_tokens
    places = _places.get(None)
    if places is None:
        places = CapacityLimiter(threads)
        _places.set(places)
    places.total_tokens = threads  # which a program may change at any time
    await places.acquire_on_behalf_of(request)
    try:
        yield
    finally:
        places.release_on_behalf_of(request)


def _require_synchronous(endpoint: Any) -> None:
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    if not inspect.isroutine(endpoint):
        endpoint = getattr(type(endpoint), "__call__", endpoint)  # noqa: B004 - what the call is
    name = getattr(endpoint, "__qualname__", repr(endpoint))
    for function in (endpoint, inspect.unwrap(endpoint)):
        if inspect.iscoroutinefunction(function):
            raise ProgrammingError(
                f"{name}() is an `async def` endpoint, and in_transaction() is for synchronous ones: the drivers are, "
                "and a statement would hold the event loop. Write `def`. Nothing was done"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ProgrammingError(
                f"{name}() is an endpoint that yields, and its body would run after the end of its transaction, or "
                "beside that: return an answer, or work in a `with txpool.transaction()` of its own. Nothing was done"
            )


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
    """In a thread that waits for no other's place: whoever has one may wait for this very transaction's locks.

    A server that goes down cancels its requests. That is heard here once the outcome is.
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
    except RuntimeError:  # no thread is to be had, and its locks would wait for one
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
