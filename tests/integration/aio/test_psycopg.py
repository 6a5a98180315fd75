"""psycopg's own names on a task's connection: COPY, pipelines, notifications, cursors of the server's."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from psycopg.rows import scalar_row
from psycopg.types import TypeInfo
from psycopg.types.numeric import FloatLoader

import txpool
from tests.integration.aio.two_databases import TwoDatabases, struck_at
from txpool.aio.connection import AsyncConnection
from txpool.aio.lock import innermost


def values(two: TwoDatabases, name: str = "one") -> list[int]:
    return [row[0] for row in two.databases.rows(name, "select a from t order by a")]


async def load(two: TwoDatabases, first: int, count: int = 100) -> None:
    async with await txpool.aconnect(two.one) as connection, connection.cursor() as cursor:
        async with cursor.copy("copy t from stdin") as copy:
            for value in range(first, first + count):
                await copy.write_row((value,))
        assert cursor.rowcount == count


@pytest.mark.parametrize("inside", [False, True])
def test_copy(two: TwoDatabases, inside: bool) -> None:
    async def work() -> None:
        await load(two, 0)
        async with await txpool.aconnect(two.one) as connection, connection.cursor() as cursor:
            async with cursor.copy("copy (select a from t order by a) to stdout") as copy:
                copy.set_types(["int4"])
                assert [row async for row in copy.rows()] == [(value,) for value in range(100)]
            async with cursor.copy("copy (select 1) to stdout") as copy:
                assert b"".join([bytes(part) async for part in copy]) == b"1\n"
            with pytest.raises(ZeroDivisionError):
                async with cursor.copy("copy t from stdin") as copy:
                    await copy.write_row((1000,))
                    raise ZeroDivisionError
            await connection.rollback() if not inside else None

    async def main() -> None:
        if not inside:
            await work()
            return
        with pytest.raises(txpool.Error):  # since a COPY in it has failed
            async with txpool.transaction():
                await work()
        async with txpool.transaction():
            await load(two, 0)

    asyncio.run(main())
    assert values(two) == [*range(100)]


@pytest.mark.parametrize("inside", [False, True])
def test_anothers_statement_during_a_copy(two: TwoDatabases, inside: bool) -> None:
    """It waits for its end. The same task's own is refused, and so is one of a task that was started in it."""

    async def insert(connection: Any, begun: asyncio.Event) -> None:
        await begun.wait()
        await connection.execute("insert into t values (2000)")

    async def work() -> None:
        begun = asyncio.Event()
        async with await txpool.aconnect(two.one) as connection, asyncio.TaskGroup() as group:
            other = group.create_task(insert(connection, begun))
            async with connection.cursor() as cursor, cursor.copy("copy t from stdin") as copy:
                begun.set()
                for value in range(1000):
                    await copy.write_row((value,))
                    await asyncio.sleep(0)
                assert not other.done()
                refused = [connection.execute("select 1"), asyncio.ensure_future(connection.execute("select 1"))]
                if inside:
                    refused.append((await txpool.aconnect(two.one)).execute("select 1"))
                for each in refused:
                    with pytest.raises(txpool.ProgrammingError, match="within a COPY of this task"):
                        await each

    async def main() -> None:
        if inside:
            async with txpool.transaction():
                await work()
        else:
            await work()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(two) == [*range(1000), 2000]


@pytest.mark.parametrize("kind", ["COPY", "pipeline"])
def test_a_thread_within_a_block(two: TwoDatabases, kind: str) -> None:
    """Its statement would wait for the block, and that for the thread."""

    def work() -> None:
        two.one.connect().execute("insert into t values (7)")

    async def main() -> None:
        async with txpool.transaction(), await txpool.aconnect(two.one) as connection, connection.cursor() as cursor:
            async with connection.pipeline() if kind == "pipeline" else cursor.copy("copy t from stdin"):
                with pytest.raises(txpool.ProgrammingError, match=f"within a {kind} of the task"):
                    await asyncio.to_thread(work)
            await asyncio.to_thread(work)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(two) == [7]


def test_two_copies_of_one_task(two: TwoDatabases) -> None:
    """Out of one database, and into another. Behind the inner one, the outer one's connection is as it was."""
    two.databases.execute("one", "insert into t select generate_series(1, 100)")

    async def main() -> None:
        async with (
            txpool.transaction(),
            await txpool.aconnect(two.one) as one,
            await txpool.aconnect(two.two) as other,
            one.cursor() as source,
            other.cursor() as target,
            source.copy("copy t to stdout") as reading,
        ):
            async with target.copy("copy t from stdin") as writing:
                async for part in reading:
                    await writing.write(part)
            with pytest.raises(txpool.ProgrammingError, match="within a COPY of this task"):
                await one.execute("select 1")
            assert (await (await other.execute("select count(*) from t")).fetchone()) == (100,)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(two, "two") == [*range(1, 101)]


def test_a_stream_that_is_left_early(two: TwoDatabases) -> None:
    """The loop closes it by a task of its own: what comes next on the connection waits for that."""

    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            for value in range(3):
                async for row in connection.cursor().stream("select generate_series(1, 100000)"):
                    assert row == (1,)
                    break
                await connection.rollback()  # psycopg has had the server cancel it
                await connection.execute("insert into t values (%s)", (value,))
                await connection.commit()
            async for _ in connection.cursor().stream("select 1"):
                around = innermost.get().outer
                assert around is None or around.outer is None  # those that have ended are not kept
                with pytest.raises(txpool.ProgrammingError, match="within a stream"):
                    await connection.execute("insert into t values (7)")

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(two) == [0, 1, 2]


@pytest.mark.parametrize("inside", [False, True])
def test_a_pipeline(two: TwoDatabases, inside: bool) -> None:
    """Tasks that were started in it are in it, one call after the other; others wait. No COPY is in it."""

    async def insert(connection: Any, value: int, begun: asyncio.Event) -> None:
        await begun.wait()
        await connection.execute("insert into t values (%s)", (value,))

    async def work() -> None:
        begun = asyncio.Event()
        async with await txpool.aconnect(two.one) as connection:
            other = asyncio.ensure_future(insert(connection, 3000, begun))
            async with connection.pipeline() as pipeline:
                begun.set()
                children = [insert(connection, value, begun) for value in range(50)]
                await asyncio.gather(*children)
                for value in range(50, 100):
                    await connection.execute("insert into t values (%s)", (value,))
                await pipeline.sync()
                cursor = await connection.execute("select count(*) from t")
                assert await cursor.fetchone() == (100,)
                async with connection.pipeline() as again:
                    assert again is pipeline
                    await connection.execute("insert into t values (100)")
                with pytest.raises(txpool.NotSupportedError, match="pipeline"):
                    async with connection.cursor().copy("copy t from stdin"):
                        pass
                assert not other.done()
            await other

    async def main() -> None:
        if inside:
            async with txpool.transaction():
                await work()
                async with await txpool.aconnect(two.two) as connection:
                    await connection.execute("insert into t values (1)")
        else:
            await work()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(two) == [*range(101), 3000]


def test_a_class_of_cursors(two: TwoDatabases) -> None:
    """psycopg's own by either name. One of the user's that awaits cannot work: it would execute nothing."""

    class Mine(psycopg.AsyncClientCursor[Any]):
        pass

    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            connection.cursor_factory = psycopg.AsyncRawCursor
            assert connection.cursor_factory is psycopg.AsyncRawCursor
            cursor = connection.cursor()
            await cursor.execute("select $1::int", (1,))
            assert await cursor.fetchone() == (1,)
            with pytest.raises(txpool.NotSupportedError, match=r"Mine cannot be cursor_factory.*psycopg\.ClientCursor"):
                connection.cursor_factory = Mine

    asyncio.run(main())


@pytest.mark.parametrize("inside", [False, True])
def test_psycopgs_own_functions_await_it(two: TwoDatabases, inside: bool) -> None:
    """They ask by isinstance() for psycopg's classes."""

    async def work(connection: Any) -> None:
        assert isinstance(connection, psycopg.AsyncConnection)
        assert isinstance(connection.cursor(), psycopg.AsyncCursor)
        assert isinstance(connection.cursor("rows"), psycopg.AsyncServerCursor)
        info = await TypeInfo.fetch(connection, "int4")
        assert info is not None
        assert info.name == "int4"
        cursor = await connection.execute("select 1 union all select null::int order by 1")
        assert isinstance(cursor, psycopg.AsyncCursor)
        cursor.row_factory = scalar_row
        assert [row async for row in cursor] == [1, None]
        cursor = connection.cursor()
        if txpool.current() is not None:
            with pytest.raises(txpool.ProgrammingError, match=r"connection\.adapters"):
                assert cursor.adapters
            await cursor.execute("select 1")
        cursor.adapters.register_loader("int4", FloatLoader)
        await cursor.execute("select 7")
        assert repr(await anext(cursor)) == "(7.0,)"

    async def main() -> None:
        async with AsyncExitStack() as stack:
            if inside:
                await stack.enter_async_context(txpool.transaction())
            await work(await stack.enter_async_context(await txpool.aconnect(two.one)))

    asyncio.run(main())


@pytest.mark.parametrize("inside", [False, True])
def test_psycopgs_own_cursors_insert_many(two: TwoDatabases, inside: bool) -> None:
    """Each in a pipeline of its own, if its task is in none."""

    async def insert(connection: Any, *values: int) -> None:
        cursor = psycopg.AsyncClientCursor(connection)
        await cursor.executemany("insert into t values (%s)", [(value,) for value in values])

    async def main() -> None:
        async with AsyncExitStack() as stack:
            if inside:
                await stack.enter_async_context(txpool.transaction())
            connection = await stack.enter_async_context(await txpool.aconnect(two.one))
            await asyncio.gather(*(insert(connection, value, value + 1) for value in (1, 3, 5)))
            async with connection.pipeline():
                await insert(connection, 7, 8)

    asyncio.run(main())
    assert two.databases.rows("one", "select a from t order by a") == [(value,) for value in range(1, 9)]


def test_results_and_blocks(two: TwoDatabases) -> None:
    """nextset() is at once, as psycopg's: what is to be awaited would be true for ever."""

    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            cursor = connection.cursor()
            assert cursor.nextset() is None
            await cursor.execute("select 1; select 2")
            assert await cursor.fetchone() == (1,)
            assert cursor.nextset() is True
            assert await cursor.fetchone() == (2,)
            assert cursor.nextset() is None
            async with connection.transaction("mine") as block:
                assert block.connection is connection
                assert block.savepoint_name == "mine"
                async with connection.transaction() as inner:
                    await connection.execute("insert into t values (1)")
                    raise psycopg.Rollback(block)  # type: ignore[arg-type]
            assert {each.status.value for each in (block, inner)} == {"rolled_back_explicitly"}

    asyncio.run(main())
    assert values(two) == []


def test_an_error_in_a_pipeline(two: TwoDatabases) -> None:
    async def main() -> None:
        with pytest.raises(txpool.IntegrityError):
            async with txpool.transaction(), await txpool.aconnect(two.one) as connection, connection.pipeline():
                for value in (1, 1):
                    await connection.execute("insert into t values (%s)", (value,))

    asyncio.run(main())
    assert values(two) == []
    assert two.one.statistics().taken == 0


@pytest.mark.parametrize("kind", ["copy", "pipeline", "tasks of a pipeline", "stream", "savepoint"])
def test_cancelled_at_each_switch(two: TwoDatabases, kind: str) -> None:
    async def work(number: int) -> None:
        async with txpool.transaction():
            async with await txpool.aconnect(two.two) as other:
                await other.execute("insert into t values (%s)", (number,))
            if kind == "copy":
                await load(two, number, 1)
                return
            async with await txpool.aconnect(two.one) as connection:
                if kind == "stream":
                    async for _ in connection.cursor().stream("insert into t values (%s) returning a", (number,)):
                        pass
                    return
                async with connection.transaction() if kind == "savepoint" else connection.pipeline():
                    statements = [connection.execute("insert into t values (%s)", (number,))]
                    if kind == "tasks of a pipeline":
                        statements += [connection.execute("select 1") for _ in range(2)]
                    await asyncio.gather(*statements)

    async def sweep() -> None:
        await work(0)
        number, reached = 1, True
        while reached:
            task = asyncio.ensure_future(work(number))
            with struck_at(number, task.cancel) as switches:
                await asyncio.wait([task], timeout=60)
            assert task.done()
            assert task.cancelled() or task.exception() is None
            assert two.held(number) in ((0, 0), (1, 1)), f"torn at switch {number}"
            assert two.prepared == []
            assert two.one.statistics().taken == two.two.statistics().taken == 0
            reached = len(switches) >= number
            number += 1

    asyncio.run(sweep())


def test_cancelled_as_a_savepoint_was_made(two: TwoDatabases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would leave its block, and nothing could be committed."""
    cancel: list[Any] = []

    class Cancelling:
        def __init__(self, block: Any) -> None:
            self._block = block

        def __enter__(self) -> Any:
            entered = self._block.__enter__()
            cancel.pop()()
            return entered

        def __exit__(self, *error: Any) -> Any:
            return self._block.__exit__(*error)

    async def main() -> None:
        task: Any = asyncio.current_task()
        async with await txpool.aconnect(two.one) as connection:
            await connection.execute("insert into t values (1)")
            handle: Any = type(connection.handle)
            make = handle.transaction
            with monkeypatch.context() as patch:
                patch.setattr(handle, "transaction", lambda self: Cancelling(make(self)))
                cancel.append(task.cancel)
                try:
                    async with connection.transaction():
                        pytest.fail("its task was cancelled")
                except asyncio.CancelledError as error:
                    kept = error  # nothing is left by the collector
            assert task.uncancel() == 0
            await connection.execute("insert into t values (2)")
            await connection.commit()
            del kept

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(two) == [1, 2]


def test_a_cursor_of_the_servers(two: TwoDatabases) -> None:
    two.databases.execute("one", "insert into t select generate_series(1, 1000)")

    async def main() -> None:
        async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
            async with connection.cursor("rows") as cursor:
                cursor.itersize = 10
                await cursor.execute("select a from t order by a")
                assert [row[0] async for row in cursor] == [*range(1, 1001)]
                await cursor.scroll(5, mode="absolute")
                assert await cursor.fetchmany(2) == [(6,), (7,)]
            await connection.execute("delete from t where a > 3")

    asyncio.run(main())
    assert values(two) == [1, 2, 3]


def test_notifications(two: TwoDatabases) -> None:
    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            await connection.set_autocommit(True)
            await connection.execute("listen here")
            heard: list[str] = []

            async def listen() -> None:
                async for notification in connection.notifies():
                    heard.append(notification.payload)
                    if len(heard) == 3:
                        break

            listening = asyncio.ensure_future(listen())
            for number in range(3):
                await asyncio.to_thread(two.databases.execute, "one", f"notify here, '{number}'")
            await asyncio.wait_for(listening, 60)
            assert heard == ["0", "1", "2"]
            assert [each async for each in connection.notifies(timeout=0)] == []
            await asyncio.to_thread(two.databases.execute, "one", "notify here, 'last'")
            assert [each.payload async for each in connection.notifies(stop_after=1)] == ["last"]

    asyncio.run(main())


def test_cancel_safe(two: TwoDatabases) -> None:
    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            sleeping = asyncio.ensure_future(connection.execute("select pg_sleep(600)"))
            while not sleeping.done():
                await connection.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                await sleeping

    asyncio.run(main())


def test_what_other_drivers_have_not(tmp_path: Any) -> None:
    async def main() -> None:
        with txpool.DataSource(
            name="file", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/file.db"
        ) as source:
            async with await txpool.aconnect(source) as connection:
                with pytest.raises(txpool.NotSupportedError, match=r"has no pipeline\(\)"):
                    async with connection.pipeline():
                        pass
                with pytest.raises(txpool.NotSupportedError, match="no COPY"):
                    async with connection.cursor().copy("copy t from stdin"):
                        pass

    asyncio.run(main())


async def listens(connection: AsyncConnection) -> None:
    """Until another task does."""
    while connection._lock.acquire(blocking=False):
        connection._lock.release()
        await asyncio.sleep(0)


def test_notifications_are_awaited_no_longer_than_their_task(two: TwoDatabases) -> None:
    """With a timeout, too: a task that is cancelled does not wait for that."""

    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            await connection.set_autocommit(True)
            listening = asyncio.ensure_future(anext(connection.notifies(timeout=3600), None))
            await listens(connection)
            listening.cancel()
            await asyncio.wait([listening], timeout=60)
            assert listening.cancelled()
            assert [each async for each in connection.notifies(timeout=0.01)] == []

    asyncio.run(main())


def test_a_notification_comes_as_its_task_is_cancelled(two: TwoDatabases, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there for the next who listens, and so is the rest of those that came at once."""
    tasks: list[asyncio.Task[Any]] = []
    hear = AsyncConnection._hear

    def cancelled(self: AsyncConnection, timeout: float | None) -> bool:
        heard = hear(self, timeout)
        while tasks:
            tasks.pop().cancel()
        return heard

    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            await connection.set_autocommit(True)
            await connection.execute("listen here")
            listening = asyncio.ensure_future(anext(connection.notifies()))
            await listens(connection)
            tasks.append(listening)
            await asyncio.to_thread(two.databases.execute, "one", "notify here, '0'; notify here, '1'")
            await asyncio.wait([listening])
            assert listening.cancelled()
            heard = [(await anext(connection.notifies())).payload for _ in range(2)]
            assert heard == ["0", "1"]

    monkeypatch.setattr(AsyncConnection, "_hear", cancelled)
    asyncio.run(main())


@pytest.mark.parametrize("fails", [1, 2])
@pytest.mark.parametrize("connections", [1, 2])
def test_blocks_of_two_tasks_that_overlap(two: TwoDatabases, connections: int, fails: int) -> None:
    """Their savepoints are of one session: the one's rollback would undo the other's work, or psycopg refuses it."""

    async def part(connection: AsyncConnection, value: int, mine: asyncio.Event, other: asyncio.Event) -> None:
        async with connection.transaction():
            await connection.execute("insert into t values (%s)", (value,))
            mine.set()
            await other.wait()
            if value == fails:
                raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(txpool.TransactionRolledBack, match=r"wrong nesting level|another task"):
            async with txpool.transaction():
                await two.insert(0)
                one, another = asyncio.Event(), asyncio.Event()
                first = second = await txpool.aconnect(two.one)
                if connections == 2:
                    second = await txpool.aconnect(two.one)
                await asyncio.gather(
                    part(first, 1, one, another), part(second, 2, another, one), return_exceptions=True
                )

    asyncio.run(main())
    assert values(two) == values(two, "two") == []


@pytest.mark.parametrize("where", ["before", "within"])
def test_another_task_works_while_a_block_is_undone(two: TwoDatabases, where: str) -> None:
    """One that was started in the block is in it: what it did is undone. Any other's work would be lost."""

    async def work(begun: asyncio.Event, done: asyncio.Event) -> None:
        await begun.wait()
        async with await txpool.aconnect(two.one) as connection:
            await connection.execute("insert into t values (2)")
        done.set()

    async def main() -> None:
        async with txpool.transaction():
            await two.insert(0)
            connection = await txpool.aconnect(two.one)
            begun, done, tasks = asyncio.Event(), asyncio.Event(), list[asyncio.Task[None]]()
            if where == "before":
                tasks.append(asyncio.create_task(work(begun, done)))
            with pytest.raises(ZeroDivisionError):
                async with connection.transaction():
                    await connection.execute("insert into t values (1)")
                    begun.set()
                    if where == "within":
                        tasks.append(asyncio.create_task(work(begun, done)))
                    await done.wait()
                    raise ZeroDivisionError
            await tasks[0]

    if where == "before":
        with pytest.raises(txpool.TransactionRolledBack, match="another task"):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert values(two) == values(two, "two") == ([0] if where == "within" else [])
