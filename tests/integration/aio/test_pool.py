"""Tasks and threads wait for a connection in one queue, first in first out; no task holds the loop by that."""

from __future__ import annotations

import asyncio
import threading

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases


@pytest.mark.costly
def test_a_thousand_tasks_on_few_connections(two: TwoDatabases) -> None:
    async def main() -> None:
        await asyncio.gather(*(two.transfer(value, []) for value in range(1000)))

    asyncio.run(main())
    for name in ("one", "two"):
        assert two.databases.rows(name, "select count(*) from t") == [(1000,)]
    assert two.prepared == []
    for source in (two.one, two.two):
        numbers = source.statistics()
        assert (numbers.taken, numbers.waiting) == (0, 0)
        assert numbers.size <= 5


def connections(two: TwoDatabases, most: int, *, max_wait: float) -> txpool.DataSource:
    """A datasource with so many at most, for which one waits so many seconds."""
    server = two.databases.server
    return txpool.DataSource(
        name="few",
        driver="psycopg",
        url=server.url("one"),
        password=server.password,
        pool_max_size=most,
        pool_max_wait=max_wait,
    )


def test_in_turn(two: TwoDatabases) -> None:
    """A thousand tasks and threads wait for 20 connections: each gets one in the order in which they came.

    The loop goes on meanwhile: it turns at least once for each task that has come.
    """
    count, each = 1000, 20  # one in so many is a thread
    order: list[int] = []
    few = connections(two, 20, max_wait=120)
    pool = few.pool

    async def take(number: int) -> None:
        async with await txpool.aconnect(few) as connection:
            order.append(number)
            if number % 50 == 1:
                await connection.execute("select 1")

    def take_in_thread(number: int) -> None:
        with few.connect():
            order.append(number)

    async def main() -> None:
        held = [await txpool.aconnect(few) for _ in range(20)]
        waiting: list[asyncio.Task[None]] = []
        threads: list[threading.Thread] = []
        for number in range(count):
            queued = len(pool.state.waiters)
            if number % each:
                waiting.append(asyncio.create_task(take(number)))
            else:
                threads.append(threading.Thread(target=take_in_thread, args=(number,)))
                threads[-1].start()
            while len(pool.state.waiters) == queued:
                await asyncio.sleep(0)
        assert not order
        waiters = [*pool.state.waiters]
        handed: list[object] = []
        hand_over = type(pool.state)._hand_over

        def noted(state: object, pooled: object) -> None:
            handed.append(pool.state.waiters[0])
            hand_over(state, pooled)  # type: ignore[arg-type]

        type(pool.state)._hand_over = noted  # type: ignore[method-assign, assignment]
        try:
            for connection in held:
                await connection.close()
            await asyncio.gather(*waiting)
            await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        finally:
            type(pool.state)._hand_over = hand_over  # type: ignore[method-assign]
        assert handed == waiters

    with few:
        asyncio.run(asyncio.wait_for(main(), 120))
        assert few.statistics().taken == few.statistics().waiting == 0
    assert sorted(order) == [*range(count)]


def test_a_task_that_is_cancelled_as_it_connects(two: TwoDatabases) -> None:
    """At each turn of the loop, from none open to all taken: no connection and no place is lost."""

    async def main() -> None:
        for turns in range(60):
            task = asyncio.create_task(txpool.aconnect(two.one))
            for _ in range(turns):
                await asyncio.sleep(0.001 if turns % 3 == 0 else 0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                await task.result().close()
            if turns % 2:
                two.one.pool.close_idle()
        assert two.one.statistics().taken == 0

    asyncio.run(main())
    assert two.one.statistics().waiting == 0


def test_the_wait_has_its_end(two: TwoDatabases) -> None:
    async def main() -> None:
        named = [asyncio.create_task(txpool.aconnect(two.one), name=f"holder {number}") for number in range(5)]
        held = await asyncio.gather(*named)
        with pytest.raises(txpool.PoolTimeout, match="5 of 5 are in use") as caught:
            await txpool.aconnect(two.one, 0.05)
        for number in range(5):  # a thread's name alone would not tell whose it is
            assert f"held by task 'holder {number}' of thread 'MainThread' for " in str(caught.value)
        for connection in held:
            await connection.close()

    asyncio.run(main())


@pytest.mark.parametrize("in_task", [True, False])
def test_a_transaction_waits_for_it_no_longer_than_its_timeout(two: TwoDatabases, in_task: bool) -> None:
    few = connections(two, 1, max_wait=10_000)

    async def main() -> None:
        async with txpool.transaction(timeout=0.1):
            await txpool.aconnect(few)

    with few.connect(), pytest.raises(txpool.TransactionTimeout):
        if in_task:
            asyncio.run(main())
        else:
            with txpool.transaction(timeout=0.1):
                few.connect()
    assert few.statistics().waiting == 0
    few.close()
