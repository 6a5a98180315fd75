"""The end of a transaction whose connection another task holds, in a COPY, a pipeline or a stream, and does nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases
from tests.support.outbox import Outbox
from tests.support.waiting import SECONDS, until
from txpool.aio.lock import TaskLock
from txpool.resources.deadlines import Deadlines


async def hold(two: TwoDatabases, kind: str, begun: asyncio.Event, goes_on: asyncio.Event) -> None:
    """Hold the connection, and go on with it one day."""
    connection = await txpool.aconnect(two.one)
    if kind == "stream":
        async for _ in connection.cursor().stream("select generate_series(1, 100000)"):
            begun.set()
            await goes_on.wait()
    elif kind == "pipeline":
        async with connection.pipeline():
            begun.set()
            await goes_on.wait()
            await connection.execute("insert into t values (-1)")
    else:
        async with connection.cursor().copy("copy t from stdin") as copy:
            begun.set()
            await goes_on.wait()
            await copy.write_row((-1,))


#: What the program hears.
HEARS = {
    "cancelled": asyncio.CancelledError,
    "deadline": txpool.TransactionTimeout,
    "deadline, left by an error": ZeroDivisionError,
}


@pytest.mark.parametrize("kind", ["COPY", "pipeline", "stream", "beside one that blocks"])
def test_it_waits_until_its_deadline_or_its_cancellation(
    two: TwoDatabases, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It rolls back, and tells who has kept it; whoever goes on in the block gets an error."""
    (tmp_path / "outbox").mkdir()
    outbox = Outbox("outbox", tmp_path / "outbox")
    held_by = "COPY" if kind == "beside one that blocks" else kind
    begun: list[txpool.Transaction] = []

    async def main(way: str, value: int) -> None:
        def strike() -> None:
            if way == "cancelled":
                task.cancel()
            else:
                if way == "deadline":
                    begun[-1].expire(600)
                begun[-1].deadlines = Deadlines(monotonic() - 600)

        async def work() -> None:
            holds = asyncio.Event()
            async with txpool.transaction() as transaction:
                begun.append(transaction)
                await two.insert(value)
                if kind == "beside one that blocks":
                    (await transaction.enlist(outbox)).write(b"1")
                copier.append(asyncio.create_task(hold(two, held_by, holds, goes_on), name="the copier"))
                await holds.wait()
                asyncio.get_running_loop().call_soon(strike)  # once this waits
                if way == "deadline, left by an error":
                    raise ZeroDivisionError

        goes_on, copier = asyncio.Event(), list[asyncio.Task[None]]()
        task = asyncio.create_task(work())
        await asyncio.wait([task])
        with pytest.raises(HEARS[way]):
            task.result()
        assert begun[-1].status is txpool.Status.ROLLED_BACK
        (told,) = [each.getMessage() for each in caplog.records if "the copier" in each.getMessage()]
        assert begun[-1].gtrid in told
        assert f"a {held_by} of task" in told
        goes_on.set()
        with pytest.raises(txpool.Error):
            await copier[0]
        assert two.one.statistics().taken == two.two.statistics().taken == 0
        await two.insert(value)

    for value, way in enumerate(HEARS):
        caplog.clear()
        asyncio.run(main(way, value))
        assert (two.held(value), two.prepared) == ((1, 1), [])
    assert two.held(-1) == (0, 0)
    assert not [each for each in outbox.path.iterdir() if each.is_file()]


def test_it_waits_no_longer_for_a_thread_that_holds_the_connection(
    two: TwoDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    acquire, asked = TaskLock.acquire, list[float]()

    def counting(lock: TaskLock, blocking: bool = True, timeout: float = -1) -> bool:
        if threading.current_thread().name == "txpool-close":
            asked.append(timeout)
        return acquire(lock, blocking, timeout)

    def asks_again() -> bool:
        """Whether the thread that closes the connection once it is free has waited past the deadline."""
        return len(asked) > 1

    monkeypatch.setattr(TaskLock, "acquire", counting)

    def copy(holds: Callable[[], object]) -> None:
        with txpool.connect(two.one) as connection, connection.cursor().copy("copy t from stdin") as copy:
            holds()
            assert goes_on.wait(SECONDS)
            for value in range(100_000):
                copy.write_row((value,))

    async def main() -> None:
        loop, holds = asyncio.get_running_loop(), asyncio.Event()
        with pytest.raises(txpool.TransactionTimeout) as raised:
            async with txpool.transaction() as transaction:
                await two.insert(1)
                thread = asyncio.create_task(asyncio.to_thread(copy, lambda: loop.call_soon_threadsafe(holds.set)))
                await holds.wait()
                transaction.expire(600)
                transaction.deadlines = Deadlines(monotonic() - 600)
        assert not thread.done()
        assert "a COPY of thread" in str(raised.value)
        await asyncio.to_thread(until, asks_again)
        goes_on.set()
        with pytest.raises(txpool.Error, match=transaction.gtrid):
            await thread
        while two.one.statistics().taken:
            await asyncio.sleep(0)
        await two.insert(2)

    asyncio.run(main())
    assert [two.held(1), two.held(2), two.prepared] == [(0, 0), (1, 1), []]


def test_a_statement_waits_no_longer_for_another_tasks_copy(two: TwoDatabases) -> None:
    async def main() -> None:
        holds, goes_on = asyncio.Event(), asyncio.Event()
        with pytest.raises(txpool.TransactionTimeout):
            async with txpool.transaction(timeout=600) as transaction:
                await two.insert(1)
                copier = asyncio.create_task(hold(two, "COPY", holds, goes_on))
                await holds.wait()
                transaction.expire(600)
                transaction.deadlines = Deadlines(monotonic() - 600)
                with pytest.raises(txpool.TransactionTimeout):
                    await two.insert(2)
        goes_on.set()
        with pytest.raises(txpool.Error):
            await copier
        await two.insert(3)

    asyncio.run(main())
    assert [two.held(1), two.held(2), two.held(3), two.prepared] == [(0, 0), (0, 0), (1, 1), []]


def test_it_waits_no_longer_for_another_tasks_statement(two: TwoDatabases) -> None:
    """Left by an error: the transaction rolls back already when its time is up, and nobody cancels what executes."""
    sleeps = "select 1 from pg_stat_activity where wait_event = 'PgSleep'"

    async def sleep() -> None:
        await (await txpool.aconnect(two.one)).execute("select pg_sleep(600)")

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with txpool.transaction() as transaction:
                await two.insert(1)
                task = asyncio.create_task(sleep())
                while not await asyncio.to_thread(two.databases.rows, "two", sleeps):
                    await asyncio.sleep(0)
                transaction.deadlines = Deadlines(monotonic() - 600)
                raise ZeroDivisionError
        with pytest.raises(txpool.Error):
            await task
        while two.one.statistics().taken:
            await asyncio.sleep(0)

    asyncio.run(main())
    assert not two.databases.rows("two", sleeps)
    assert two.held(1) == (0, 0)


@pytest.mark.parametrize("kind", ["stream", "pipeline"])
@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_one_that_its_own_task_has_left_open(two: TwoDatabases, kind: str, error: type[Exception] | None) -> None:
    """A variable keeps a stream that was left early, and an exit stack a pipeline: all rolls back at the end."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            with pytest.raises(error or txpool.TransactionRolledBack) as raised:
                async with txpool.transaction() as transaction:
                    await two.insert(1)
                    connection = await txpool.aconnect(two.one)
                    if kind == "stream":
                        rows = connection.cursor().stream("select generate_series(1, 100000)")
                        assert await anext(rows) == (1,)
                    else:
                        await stack.enter_async_context(connection.pipeline())
                        await connection.execute("insert into t values (2)")
                    if error is not None:
                        raise error
            assert transaction.status is txpool.Status.ROLLED_BACK
            assert txpool.current() is None
            assert error is not None or f"a {kind}" in str(raised.value)
            assert two.one.statistics().taken == two.two.statistics().taken == 0
            if kind == "stream":
                with pytest.raises(txpool.Error):
                    async for _ in rows:
                        pass
            else:
                with pytest.raises(txpool.Error):
                    await stack.aclose()
        await two.insert(3)

    asyncio.run(main())
    assert [two.held(1), two.held(2), two.held(3), two.prepared] == [(0, 0), (0, 0), (1, 1), []]


@pytest.mark.parametrize("around", [0, 1, 3])
@pytest.mark.parametrize("then", ["a statement", "the end"])
def test_a_stream_that_was_left_early_is_closed_before(two: TwoDatabases, around: int, then: str) -> None:
    """By the loop, also where generators of one's own give its rows: the innermost one is closed last."""

    async def rows(depth: int) -> AsyncIterator[Any]:
        if depth:
            async for row in rows(depth - 1):
                yield row
            return
        async with await txpool.aconnect(two.one) as connection:
            async for row in connection.cursor().stream("select 1"):
                yield row

    async def main() -> None:
        async with txpool.transaction():
            await two.insert(1)
            async for _ in rows(around):
                break
            if then == "a statement":
                await two.insert(2)

    asyncio.run(main())
    assert two.held(1) == (1, 1)
    assert two.held(2) == ((1, 1) if then == "a statement" else (0, 0))
