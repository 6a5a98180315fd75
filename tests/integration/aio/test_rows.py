"""Rows that have arrived are fetched without a call of the bridge for each; what else a fetch tells stays the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pymysql.cursors
import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases, struck_at
from tests.support.mysql import MySQLServer
from txpool.aio.call import Call

COUNT = 1000


@contextmanager
def counted_calls() -> Iterator[list[None]]:
    """Gives a list that has an entry for each call of the bridge within the block."""
    calls: list[None] = []
    begin = Call.begin

    def counting(self: Call, *args: Any, **options: Any) -> None:
        calls.append(None)
        begin(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Call, "begin", counting)
        yield calls


@pytest.fixture(params=["one", "shop"])
def source(request: pytest.FixtureRequest) -> Iterator[txpool.DataSource]:
    if request.param == "one":
        yield request.getfixturevalue("two").one
        return
    mariadb: MySQLServer = request.getfixturevalue("mariadb")
    mariadb.empty()
    with txpool.DataSource(
        name="shop", driver="pymysql", mode="xa", url=mariadb.url("one"), password=mariadb.password
    ) as shop:
        yield shop


@asynccontextmanager
async def nothing() -> Any:
    yield


async def by_iteration(cursor: Any) -> list[Any]:
    return [row async for row in cursor]


async def by_fetchone(cursor: Any) -> list[Any]:
    rows = []
    while (row := await cursor.fetchone()) is not None:
        rows.append(row)
    return rows


@pytest.mark.parametrize("fetched", [by_iteration, by_fetchone])
@pytest.mark.parametrize("around", [txpool.transaction, nothing])
def test_a_row_is_no_call(source: txpool.DataSource, fetched: Any, around: Callable[[], Any]) -> None:
    numbers = "select n from (with recursive s as (select 1 as n union all select n + 1 from s where n < %s) "

    async def main() -> list[Any]:
        async with around(), await txpool.aconnect(source) as connection:
            cursor = connection.cursor()
            await cursor.execute(f"{numbers} select n from s) t order by n", (COUNT,))
            with counted_calls() as calls:
                rows: list[Any] = await fetched(cursor)
            assert calls == []
            return rows

    assert asyncio.run(main()) == [(number + 1,) for number in range(COUNT)]


def test_a_page_of_a_server_side_cursor_is_one_call(two: TwoDatabases) -> None:
    async def main() -> list[Any]:
        async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
            async with connection.cursor("pages") as cursor:
                await cursor.execute("select generate_series(1, %s)", (COUNT,))
                with counted_calls() as calls:
                    rows = await by_iteration(cursor)
                assert len(calls) == COUNT // cursor.itersize + 1
                return rows

    assert asyncio.run(main()) == [(number + 1,) for number in range(COUNT)]


def test_a_row_of_copy_is_no_call_until_they_are_sent(two: TwoDatabases) -> None:
    async def main(formatted: str) -> None:
        async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
            async with connection.cursor().copy(f"copy t from stdin {formatted}") as copy:
                copy.set_types(["int4"])
                with counted_calls() as calls:
                    for number in range(20 * COUNT):
                        await copy.write_row((number,))
                assert 0 < len(calls) < 20

    for formatted in ("", "(format binary)"):
        asyncio.run(main(formatted))
        assert two.databases.rows("one", "select count(*), sum(a)::int8 from t") == [(20_000, 199_990_000)]
        two.databases.execute("one", "truncate t")


async def by_stream(cursor: Any, query: str, _: str) -> AsyncIterator[Any]:
    async for row in cursor.stream(query):
        yield row


async def by_copy(cursor: Any, query: str, formatted: str) -> AsyncIterator[Any]:
    async with cursor.copy(f"copy ({query}) to stdout {formatted}") as copy:
        copy.set_types(["int4", "text"])
        async for row in copy.rows():
            yield row
        assert await copy.read_row() is None
        assert not await copy.read()
    assert cursor.rowcount >= 0


async def by_parts(cursor: Any, query: str, _: str) -> AsyncIterator[Any]:
    async with cursor.copy(f"copy ({query}) to stdout (format csv)") as copy:
        async for part in copy:
            number, text = bytes(part).decode().rstrip("\n").split(",")
            yield int(number), text


WAYS = {
    "stream": (by_stream, ""),
    "text": (by_copy, ""),
    "binary": (by_copy, "(format binary)"),
    "parts": (by_parts, ""),
}
ways = pytest.mark.parametrize("way", WAYS)


@ways
@pytest.mark.parametrize("count", [0, 1, 100, 101, 102, 20 * COUNT])
def test_rows_that_arrive_are_not_a_call_each(two: TwoDatabases, way: str, count: int) -> None:
    read, formatted = WAYS[way]
    query = f"select i, 'fare ' || i from generate_series(1, {count}) i"

    async def main() -> list[Any]:
        async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
            with counted_calls() as calls:
                rows = [row async for row in read(connection.cursor(), query, formatted)]
            assert len(calls) < 20 + count / 40
            assert await (await connection.execute("select 7")).fetchall() == [(7,)]
            return rows

    assert asyncio.run(main()) == [(number, f"fare {number}") for number in range(1, count + 1)]


def test_a_copy_that_has_ended_is_asked_for_no_more(two: TwoDatabases, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred looks for what cannot come would take longer than a small COPY."""
    looks: list[None] = []
    steps = psycopg.Copy._read_gen

    def counting(self: psycopg.Copy) -> Any:
        looks.append(None)
        return steps(self)

    monkeypatch.setattr(psycopg.Copy, "_read_gen", counting)

    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            assert [row async for row in by_parts(connection.cursor(), "select 1, 'x'", "")] == [(1, "x")]

    asyncio.run(main())
    assert len(looks) < 5


@ways
def test_rows_before_one_that_fails(two: TwoDatabases, way: str) -> None:
    """They are given, as by psycopg, and the error behind them."""
    read, formatted = WAYS[way]
    query = "select i, (1 / (50 - i))::text from generate_series(1, 100) i"

    async def main() -> list[int]:
        last, count = 0, 0
        async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
            with pytest.raises(txpool.DataError, match="division by zero"):
                async with connection.transaction():
                    async for row in read(connection.cursor(), query, formatted):
                        last, count = row[0], count + 1
            assert await (await connection.execute("select 7")).fetchall() == [(7,)]
        return [last, count]

    assert asyncio.run(main()) == [49, 49]


@ways
def test_a_row_is_given_before_the_next_is_there(two: TwoDatabases, way: str) -> None:
    """The server computes that once the program has seen this one. Each is long, so that it is not kept back."""
    read, formatted = WAYS[way]
    waited = "case when i = 6 then length(pg_advisory_xact_lock_shared(39)::text) else 0 end"
    query = f"select i, repeat('x', 100000 + {waited}) from generate_series(1, 9) i"

    async def main() -> int:
        seen = 0
        async with await txpool.aconnect(two.one) as holder, await txpool.aconnect(two.one) as connection:
            await holder.execute("select pg_advisory_lock(39)")
            async with asyncio.timeout(600):
                async for _ in read(connection.cursor(), query, formatted):
                    seen += 1
                    if seen == 4:
                        await holder.execute("select pg_advisory_unlock(39)")
        return seen

    assert asyncio.run(main()) == 9


@ways
def test_rows_of_a_stream_that_is_left(two: TwoDatabases, way: str) -> None:
    """What was read ahead is gone with it, and the connection is as good as before."""
    read, formatted = WAYS[way]

    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            for count in (3, 1_000_000):
                rows = read(connection.cursor(), f"select i, i::text from generate_series(1, {count}) i", formatted)
                assert (await anext(rows))[0] == 1
                await rows.aclose()
                await connection.rollback()  # what was left of it is cancelled
                assert await (await connection.execute("select 7")).fetchall() == [(7,)]

    asyncio.run(main())


@pytest.mark.parametrize("method", ["write", "write_row"])
def test_a_copy_whose_part_was_cancelled_is_not_done(two: TwoDatabases, method: str) -> None:
    """The program swallows the cancellation, and goes on: else it would take for done what may lack rows."""

    async def main() -> None:
        task: Any = asyncio.current_task()
        async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
            await connection.execute("insert into t values (-1)")
            cancelled = 0
            with pytest.raises(txpool.OperationalError, match="a part of this COPY"):
                async with connection.transaction(), connection.cursor().copy("copy t from stdin") as copy:
                    with struck_at(1, task.cancel):
                        for number in range(60):
                            long = f"{' ' * 500_000}{number}"  # so that it has to wait
                            try:
                                await (copy.write(f"{long}\n") if method == "write" else copy.write_row((long,)))
                            except asyncio.CancelledError:
                                task.uncancel()
                                cancelled += 1
            assert cancelled == 1
            assert txpool.current() is not None

    asyncio.run(main())
    assert two.databases.rows("one", "select a from t") == [(-1,)]


@pytest.mark.parametrize("method", ["read", "read_row"])
def test_a_copy_whose_part_was_cancelled_is_read_no_further(
    two: TwoDatabases, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program swallows the cancellation, and goes on: else it would take for all what lacks a row."""
    waited = "case when i = 6 then length(pg_advisory_xact_lock_shared(39)::text) else 0 end"
    query = f"copy (select i, repeat('x', 100000 + {waited}) from generate_series(1, 9) i) to stdout"

    async def main() -> None:
        task: Any = asyncio.current_task()
        async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
            await connection.execute("insert into t values (-1)")
            with pytest.raises(txpool.OperationalError, match="a part of this COPY"):
                async with connection.transaction(), connection.cursor().copy(query) as copy:
                    for _ in range(5):
                        await getattr(copy, method)()
                    with struck_at(1, task.cancel), pytest.raises(asyncio.CancelledError):
                        await getattr(copy, method)()
                    task.uncancel()
                    await getattr(copy, method)()

    with psycopg.connect(two.databases.dsn("one"), autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(39)")

        def too_late(*_: Any, **__: Any) -> None:
            holder.execute("select pg_advisory_unlock(39)")

        monkeypatch.setattr(psycopg.Connection, "cancel_safe", too_late)
        asyncio.run(main())
    assert two.databases.rows("one", "select a from t") == [(-1,)]


def test_what_a_fetch_tells(two: TwoDatabases) -> None:
    """Behind the transaction's end, in a task that is not in it, of a value that cannot be read, and without rows."""

    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            async with txpool.transaction():
                cursor = await connection.execute("select 1")
                dates = await connection.execute("select 'infinity'::timestamp")
                with pytest.raises(txpool.DataError) as found:
                    await dates.fetchone()
                assert isinstance(found.value, psycopg.DataError)
                nothing_read = await connection.execute("create temporary table u (a integer)")
                with pytest.raises(txpool.ProgrammingError, match="produce records"):
                    await nothing_read.fetchone()
            with pytest.raises(txpool.InterfaceError, match="the result is gone"):
                await cursor.fetchone()

    asyncio.run(main())


def test_a_cursor_of_ones_own_is_called_as_before(two: TwoDatabases) -> None:
    """Its methods may execute statements."""

    class Own(psycopg.Cursor[Any]):
        def fetchone(self) -> Any:
            return psycopg.Cursor(self.connection).execute("select 2").fetchone()

    async def main() -> None:
        async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
            connection.cursor_factory = Own
            cursor = await connection.execute("select 1")
            with counted_calls() as calls:
                assert await cursor.fetchone() == (2,)
            assert len(calls) == 1

    asyncio.run(main())


def test_unbuffered_rows_of_mariadb_wait_in_the_loop(mariadb: MySQLServer) -> None:
    mariadb.empty()
    source = txpool.DataSource(
        name="shop", driver="pymysql", mode="xa", url=mariadb.url("one"), password=mariadb.password
    )

    async def main() -> None:
        async with txpool.transaction(), await txpool.aconnect(source) as connection:
            cursor = connection.cursor(pymysql.cursors.SSCursor)
            await cursor.execute("select 1 union select 2")
            with counted_calls() as calls:
                assert await by_iteration(cursor) == [(1,), (2,)]
            assert len(calls) >= 2

    with source:
        asyncio.run(main())
