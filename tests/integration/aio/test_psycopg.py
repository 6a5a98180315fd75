"""psycopg's own names on a task's connection: COPY, pipelines, notifications, cursors of the server's."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases, struck_at


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
def test_a_childs_statement_during_anothers_copy(two: TwoDatabases, inside: bool) -> None:
    """It waits for its end. The same task's own is refused."""

    async def insert(connection: Any) -> None:
        await connection.execute("insert into t values (2000)")

    async def work() -> None:
        async with (
            await txpool.aconnect(two.one) as connection,
            connection.cursor() as cursor,
            asyncio.TaskGroup() as group,
            cursor.copy("copy t from stdin") as copy,
        ):
            child = group.create_task(insert(connection))
            for value in range(1000):
                await copy.write_row((value,))
                await asyncio.sleep(0)
            assert not child.done()
            with pytest.raises(txpool.ProgrammingError, match="within a COPY of this task"):
                await connection.execute("select 1")
            if inside:
                other = await txpool.aconnect(two.one)
                with pytest.raises(txpool.ProgrammingError, match="within a COPY of this task"):
                    await other.execute("select 1")

    async def main() -> None:
        if inside:
            async with txpool.transaction():
                await work()
        else:
            await work()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert values(two) == [*range(1000), 2000]


@pytest.mark.parametrize("inside", [False, True])
def test_a_pipeline(two: TwoDatabases, inside: bool) -> None:
    async def others(connection: Any) -> None:
        await connection.execute("insert into t values (3000)")

    async def work() -> None:
        async with await txpool.aconnect(two.one) as connection:
            async with connection.pipeline() as pipeline:
                child = asyncio.ensure_future(others(connection))
                for value in range(100):
                    await connection.execute("insert into t values (%s)", (value,))
                await pipeline.sync()
                cursor = await connection.execute("select count(*) from t")
                assert await cursor.fetchone() == (100,)
                async with connection.pipeline():
                    await connection.execute("insert into t values (100)")
                assert not child.done()
            await child

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


def test_an_error_in_a_pipeline(two: TwoDatabases) -> None:
    async def main() -> None:
        with pytest.raises(txpool.IntegrityError):
            async with txpool.transaction(), await txpool.aconnect(two.one) as connection, connection.pipeline():
                for value in (1, 1):
                    await connection.execute("insert into t values (%s)", (value,))

    asyncio.run(main())
    assert values(two) == []
    assert two.one.statistics().taken == 0


@pytest.mark.parametrize("kind", ["copy", "pipeline"])
def test_cancelled_at_each_switch(two: TwoDatabases, kind: str) -> None:
    async def work(number: int) -> None:
        async with txpool.transaction():
            async with await txpool.aconnect(two.two) as other:
                await other.execute("insert into t values (%s)", (number,))
            if kind == "copy":
                await load(two, number, 1)
                return
            async with await txpool.aconnect(two.one) as connection, connection.pipeline():
                await connection.execute("insert into t values (%s)", (number,))

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
