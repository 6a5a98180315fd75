"""A task that is cancelled at any of its switches: both databases have the row, or none, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

import anyio
import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases, struck_at
from tests.support.waiting import SECONDS, until
from txpool.tm.manager import TransactionManager

Transfer = Callable[[], Awaitable[None]]
Way = Callable[[Transfer, int], Awaitable[bool]]


async def by_cancel(transfer: Transfer, number: int, times: int = 1) -> bool:
    """Task.cancel(), at once or again at the next turns."""
    loop = asyncio.get_running_loop()
    left = times

    def cancel() -> None:
        nonlocal left
        left -= 1
        task.cancel()
        if left:
            loop.call_soon(cancel)

    task = asyncio.ensure_future(transfer())
    with struck_at(number, cancel) as switches, suppress(asyncio.CancelledError):
        await task
    assert task.cancelled() or left == times or task.exception() is None
    return len(switches) >= number


async def by_cancel_twice(transfer: Transfer, number: int) -> bool:
    return await by_cancel(transfer, number, 2)


async def by_timeout(transfer: Transfer, number: int) -> bool:
    loop = asyncio.get_running_loop()
    with suppress(TimeoutError):
        async with asyncio.timeout(None) as timeout:
            with struck_at(number, lambda: timeout.reschedule(loop.time())) as switches:
                await transfer()
    return len(switches) >= number


async def by_a_sibling(transfer: Transfer, number: int) -> bool:
    """Another task of the TaskGroup fails."""
    fail = asyncio.Event()

    class FailedError(Exception):
        pass

    async def sibling() -> None:
        await fail.wait()
        raise FailedError

    with suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            other = group.create_task(sibling())
            with struck_at(number, fail.set) as switches:
                await transfer()
            other.cancel()
    return len(switches) >= number


async def by_anyio(transfer: Transfer, number: int) -> bool:
    """Its scope cancels again at each turn of the loop."""
    with anyio.CancelScope() as scope, struck_at(number, scope.cancel) as switches:
        await transfer()
    return len(switches) >= number


WAYS: list[Way] = [by_cancel, by_cancel_twice, by_timeout, by_a_sibling, by_anyio]


async def sweep(two: TwoDatabases, way: Way) -> tuple[int, int]:
    """How many strikes were before the decision, and how many behind it."""
    await two.transfer(0, [])  # what is opened once is open then
    outcomes: list[tuple[int, int]] = []
    row, number = 1, 1
    while True:
        begun: list[txpool.Transaction] = []
        reached = await way(lambda row=row, begun=begun: two.transfer(row, begun), number)  # type: ignore[misc]
        held = two.held(row)
        assert held in ((0, 0), (1, 1)), f"torn at switch {number}"
        status = begun[0].status if begun else txpool.Status.ROLLED_BACK
        assert status is (txpool.Status.COMMITTED if held == (1, 1) else txpool.Status.ROLLED_BACK)
        assert txpool.current() is None
        assert two.prepared == []
        assert two.one.statistics().taken == two.two.statistics().taken == 0
        row += 1
        if reached:
            outcomes.append(held)
            number += 1
        elif (1, 1) in outcomes:
            return outcomes.count((0, 0)), outcomes.count((1, 1))
        # else answers that were there at once have spared this transaction some of its switches: it is tried again


@pytest.mark.parametrize("way", WAYS)
def test_at_each_switch(two: TwoDatabases, way: Way) -> None:
    before, behind = asyncio.run(sweep(two, way))
    assert before >= 2
    assert behind >= 1


def uvloops() -> asyncio.AbstractEventLoop:
    return pytest.importorskip("uvloop").new_event_loop()  # type: ignore[no-any-return]


def eager() -> asyncio.AbstractEventLoop:
    """Its tasks run to their first wait at once."""
    if sys.version_info < (3, 12):
        pytest.skip("Python has eager tasks since 3.12")
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    return loop


@pytest.mark.parametrize("made", [uvloops, eager])
def test_at_each_switch_of_other_loops(two: TwoDatabases, made: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=made) as runner:
        before, behind = runner.run(sweep(two, by_cancel))
    assert before >= 2
    assert behind >= 1


@pytest.mark.costly
@pytest.mark.parametrize("collected", [False, True], ids=["closed", "collected"])
def test_a_loop_that_is_closed_at_each_switch(two: TwoDatabases, collected: bool) -> None:
    """Its task is dropped with it, or kept and never finished until then: the call is finished by waits that block."""
    asyncio.run(two.transfer(0, []))
    reached, number, outcomes = True, 1, []
    while reached:
        loop = asyncio.new_event_loop()
        begun: list[txpool.Transaction] = []
        with struck_at(number, loop.stop) as switches:
            coroutine: Any = two.transfer(number, begun)
            with suppress(RuntimeError):  # it was stopped before the coroutine has ended
                loop.run_until_complete(coroutine)
            reached = len(switches) >= number
            loop.set_exception_handler(lambda *_: None)
            loop.close()
        if not collected:
            coroutine.close()
        del coroutine
        gc.collect()
        if begun:
            until(lambda begun=begun: begun[0].status not in (txpool.Status.ACTIVE, txpool.Status.ROLLING_BACK))  # type: ignore[misc]
        held = two.held(number)
        assert held in ((0, 0), (1, 1)), f"torn at switch {number}"
        assert not begun or (begun[0].status is txpool.Status.COMMITTED) == (held == (1, 1))
        assert two.prepared == []
        until(lambda: two.one.statistics().taken == two.two.statistics().taken == 0)
        outcomes.append(held)
        number += 1
    assert {*outcomes} == {(0, 0), (1, 1)}


@pytest.mark.parametrize("kind", ["COPY", "pipeline", "stream"])
def test_a_loop_that_is_closed_while_the_end_waits_for_a_block(two: TwoDatabases, kind: str) -> None:
    """The block is another task's, which goes on nowhere. A thread rolls back, once that is closed, too."""
    left: list[Any] = []

    async def child(begun: asyncio.Event) -> None:
        connection = await txpool.aconnect(two.one)
        if kind == "stream":
            async for _ in connection.cursor().stream("select generate_series(1, 100000)"):
                begun.set()
                await asyncio.Event().wait()
        async with connection.pipeline() if kind == "pipeline" else connection.cursor().copy("copy t from stdin"):
            begun.set()
            await asyncio.Event().wait()

    async def parent(stopped: ExitStack) -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        async with txpool.transaction():
            await two.insert(1)
            left.append(child(begun))
            left.append(loop.create_task(left[1]))
            await begun.wait()
            stopped.enter_context(struck_at(1, loop.stop))

    def work() -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        with ExitStack() as stopped:
            left.append(parent(stopped))
            with suppress(RuntimeError):  # it was stopped before the coroutine has ended
                loop.run_until_complete(left[0])
        loop.close()
        for coroutine in left[:2]:
            coroutine.close()
        left.clear()
        gc.collect()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    until(lambda: two.one.statistics().taken == two.two.statistics().taken == 0)
    assert (two.held(1), two.prepared) == ((0, 0), [])


def test_as_its_block_is_entered(
    two: TwoDatabases, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told of a transaction that was dropped: its block has not begun."""
    begun: list[txpool.Transaction] = []
    new_transaction = TransactionManager.new_transaction

    def begin(*arguments: Any, **named: Any) -> txpool.Transaction:
        begun.append(new_transaction(*arguments, **named))
        begun[-1].after_completion(lambda _: ended.set())
        task.cancel()
        return begun[-1]

    async def enter() -> None:
        async with txpool.transaction():
            raise AssertionError

    async def main() -> None:
        nonlocal task
        task = asyncio.create_task(enter())
        with pytest.raises(asyncio.CancelledError):
            await task

    task: asyncio.Task[None]
    ended = threading.Event()
    monkeypatch.setattr(TransactionManager, "new_transaction", begin)
    asyncio.run(main())
    assert ended.wait(SECONDS)
    until(lambda: begun[0].rolling_back is not None and not begun[0].rolling_back.locked())
    assert not caplog.records
