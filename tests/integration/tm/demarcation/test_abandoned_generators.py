"""A generator or a coroutine that is given up within a block: it is rolled back and reported, and nobody waits."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.tm.demarcation.reports import Reports, in_a_thread, rolled_back
from tests.integration.tm.demarcation.table import OneDatasource
from txpool.tm.ambient import current, make_ambient
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.transactional import transactional


@types.coroutine
def pause() -> Iterator[None]:
    yield


@pytest.mark.parametrize("where", ["here", "in another thread", "in another context"])
def test_a_generator_is_abandoned(world: OneDatasource, reports: Reports, where: str) -> None:
    def work() -> Iterator[None]:
        with transaction():  # here
            world.insert(world.datasource.connect(), 1)
            yield

    generators = [work()]
    if where == "in another context":
        contextvars.copy_context().run(next, generators[0])
    else:
        next(generators[0])
    if where == "in another thread":
        in_a_thread(generators.clear)
        make_ambient(None)
    else:
        generators.clear()
    assert current() is None
    rolled_back(world)
    reports.one("here")


def test_an_exception_in_a_generator_s_loop(world: OneDatasource, reports: Reports) -> None:
    def work() -> Iterator[None]:
        with transaction():  # here
            world.insert(world.datasource.connect(), 1)
            yield

    def consume() -> None:
        for _ in work():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    rolled_back(world)
    reports.one("here")


def test_a_coroutine_that_was_never_finished(world: OneDatasource, reports: Reports) -> None:
    async def work() -> None:
        with transaction():  # here
            world.insert(world.datasource.connect(), 1)
            await pause()

    contextvars.copy_context().run(work().send, None)
    rolled_back(world)
    reports.one("here")


def test_a_task_that_was_never_finished(world: OneDatasource, reports: Reports) -> None:
    """The collector finds the coroutine, its context and the transaction together."""

    @transactional  # here
    async def work() -> None:
        world.insert(world.datasource.connect(), 1)
        await asyncio.Future()

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    rolled_back(world)
    assert ".<locals>.work and dropped" in reports.one("here")


@pytest.mark.parametrize("propagation", ["requires_new", "not_supported"])
def test_a_decorated_coroutine_that_was_never_finished(
    world: OneDatasource, reports: Reports, propagation: Any
) -> None:
    @transactional(propagation)  # here
    async def work() -> None:
        if current() is not None:
            world.insert(world.datasource.connect(), 1)
        await pause()

    contextvars.copy_context().run(work().send, None)
    gc.collect()
    rolled_back(world)
    if propagation == "requires_new":
        reports.one("here")
