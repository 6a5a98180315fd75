"""psycopg's names on a task's connection, cursor and pipeline: each works as psycopg's, or is refused by name."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import txpool
from tests.integration.aio.two_databases import TwoDatabases

#: Of the connection, with what to write instead.
REFUSED = {"cancel": "cancel_safe", "connect": "aconnect"}


def public(it: object) -> set[str]:
    return {name for name in dir(it) if not name.startswith("_")}


def test_each_of_psycopgs_names(two: TwoDatabases) -> None:
    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            for name in public(psycopg.AsyncConnection):
                if name in REFUSED:
                    with pytest.raises(AttributeError, match=f"'{name}'.*{REFUSED[name]}"):
                        getattr(connection, name)
                else:
                    getattr(connection, name)
            for cursor in (connection.cursor(), await connection.execute("select 1")):
                missing = {name for name in public(psycopg.AsyncCursor) if not hasattr(cursor, name)}
                assert missing <= {"adapters"}
            named = connection.cursor("named", scrollable=True, withhold=True)
            assert (named.name, named.scrollable, named.withhold, named.itersize) == ("named", True, True, 100)
            await named.execute("select 1")
            assert (named.name, named.scrollable, named.withhold, named.itersize) == ("named", True, True, 100)
            await named.close()

    asyncio.run(main())


@pytest.mark.parametrize("inside", [False, True])
def test_what_is_read_and_set(two: TwoDatabases, inside: bool) -> None:
    notices: list[str] = []

    def notice(told: Any) -> None:
        notices.append(told.message_primary)

    async def work() -> None:
        async with await txpool.aconnect(two.one) as connection:
            assert connection.autocommit is False
            with pytest.raises(AttributeError, match=r"write `await set_autocommit\(…\)`"):
                connection.autocommit = True
            assert connection.connection is connection
            assert connection.broken is False
            connection.row_factory, connection.prepare_threshold = dict_row, None
            connection.add_notice_handler(notice)
            await connection.execute("do $$ begin raise notice 'heard'; end $$")
            connection.remove_notice_handler(notice)
            await connection.execute("do $$ begin raise notice 'not heard'; end $$")
            assert notices == ["heard"]
            cursor = await connection.execute("select 1 as a")
            assert await cursor.fetchone() == {"a": 1}
            assert connection.prepare_threshold is None
            assert connection.info.dbname == "one"
            assert connection.info.backend_pid == connection.pgconn.backend_pid
        async with await txpool.aconnect(two.one) as connection:
            assert await (await connection.execute("select 1")).fetchone() == (1,)

    async def main() -> None:
        if inside:
            async with txpool.transaction():
                await work()
                async with await txpool.aconnect(two.two) as connection:
                    await connection.execute("insert into t values (1)")
        else:
            await work()

    asyncio.run(main())


def test_how_its_transactions_begin(two: TwoDatabases) -> None:
    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            await connection.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
            await connection.set_read_only(True)
            await connection.set_deferrable(True)
            assert (connection.isolation_level, connection.read_only) == (psycopg.IsolationLevel.SERIALIZABLE, True)
            cursor = await connection.execute("show transaction_isolation")
            assert await cursor.fetchone() == ("serializable",)
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                await connection.execute("insert into t values (1)")

    asyncio.run(main())


def test_psycopgs_two_phase_commit(two: TwoDatabases) -> None:
    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            for value, end in ((1, connection.tpc_commit), (2, connection.tpc_rollback)):
                await connection.tpc_begin(connection.xid(1, f"by-hand-{value}", "x"))
                await connection.execute("insert into t values (%s)", (value,))
                await connection.tpc_prepare()
                await end()
            assert await connection.tpc_recover() == []

    asyncio.run(main())
    assert two.held(1) == (1, 0)
    assert two.held(2) == (0, 0)


@pytest.mark.parametrize("inside", [False, True])
def test_a_stream(two: TwoDatabases, inside: bool) -> None:
    """Rows as they arrive. While it is read nobody else uses the connection; left early, that goes on."""

    async def insert(connection: Any, begun: asyncio.Event) -> None:
        await begun.wait()
        await connection.execute("insert into t values (7)")

    async def work() -> None:
        async with await txpool.aconnect(two.one) as connection:
            cursor, begun = connection.cursor(), asyncio.Event()
            other = asyncio.ensure_future(insert(connection, begun))
            rows = cursor.stream("select generate_series(1, %s)", (3,))
            assert await anext(rows) == (1,)
            begun.set()
            with pytest.raises(txpool.ProgrammingError, match="within a stream of this task"):
                await connection.execute("select 1")
            assert [row async for row in rows] == [(2,), (3,)]
            await other
            endless = cursor.stream("select generate_series(1, 10000000)")
            assert await anext(endless) == (1,)
            await endless.aclose()

    async def main() -> None:
        if inside:
            with pytest.raises(txpool.Error):  # since what the server executes was cancelled
                async with txpool.transaction():
                    await work()
        else:
            await work()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert two.one.statistics().taken == 0


def test_results_one_after_the_other(two: TwoDatabases) -> None:
    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            cursor = await connection.execute("select 1; select 2; select 3")
            assert [await each.fetchone() async for each in cursor.results()] == [(1,), (2,), (3,)]
            assert await (await cursor.set_result(1)).fetchone() == (2,)
            async with connection.pipeline() as pipeline:
                assert pipeline.is_supported()
                assert pipeline.status == psycopg.pq.PipelineStatus.ON

    asyncio.run(main())
