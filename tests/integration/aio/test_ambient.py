"""The transaction follows the task and those that it starts; what would hold the loop is refused."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases
from tests.support.outbox import Outbox
from tests.support.waiting import until


def test_the_tasks_that_it_starts_work_in_it(two: TwoDatabases) -> None:
    """All over one connection of each database, on which they are serialised."""

    async def main() -> None:
        async with txpool.transaction():
            async with asyncio.TaskGroup() as group:
                for value in range(20):
                    group.create_task(two.insert(value))
            assert two.one.statistics().taken == two.two.statistics().taken == 1

    asyncio.run(main())
    assert {two.held(value) for value in range(20)} == {(1, 1)}


def test_a_child_that_fails_rolls_all_back(two: TwoDatabases) -> None:
    async def main() -> None:
        async with txpool.transaction(), asyncio.TaskGroup() as group:
            group.create_task(two.insert(1))
            group.create_task(two.insert(1))

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(main())
    assert raised.group_contains(txpool.IntegrityError)
    assert two.held(1) == (0, 0)


def test_two_tasks_on_one_plain_connection_are_serialised(two: TwoDatabases) -> None:
    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            statements = (connection.execute("insert into t values (%s)", (value,)) for value in range(20))
            await asyncio.gather(*statements)

    asyncio.run(main())
    assert two.databases.rows("one", "select count(*) from t") == [(20,)]


def test_a_task_that_outlives_the_block_is_refused(two: TwoDatabases) -> None:
    async def main() -> None:
        over = asyncio.Event()

        async def late() -> None:
            await over.wait()
            await two.insert(2)

        async with txpool.transaction() as transaction:
            child = asyncio.create_task(late())
            await two.insert(1)
        over.set()
        with pytest.raises(txpool.ProgrammingError, match=transaction.gtrid):
            await child

    asyncio.run(main())
    assert two.held(1) == (1, 1)
    assert two.held(2) == (0, 0)


def test_tasks_that_wait_for_one_row_do_not_hold_the_loop(two: TwoDatabases) -> None:
    two.databases.execute("one", "insert into t values (0)")

    async def main() -> None:
        locked, waits = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
                await connection.execute("update t set a = 1 where a = 0")
                locked.set()
                await waits.wait()

        async def second() -> int:
            await locked.wait()
            async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
                asyncio.get_running_loop().call_later(0.01, waits.set)
                return int((await connection.execute("update t set a = 2 where a in (0, 1)")).rowcount)

        await asyncio.wait_for(asyncio.gather(first(), second()), 60)

    asyncio.run(main())


def test_a_timeout_reaches_a_task_that_waits_for_a_row(two: TwoDatabases) -> None:
    two.databases.execute("one", "insert into t values (0)")

    async def main() -> None:
        async with await txpool.aconnect(two.one) as outside:
            await outside.execute("update t set a = 1 where a = 0")
            with pytest.raises(txpool.TransactionTimeout):
                async with txpool.transaction(timeout=0.2), await txpool.aconnect(two.one) as connection:
                    await connection.execute("update t set a = 2 where a = 0")
            await outside.rollback()

    asyncio.run(main())
    assert two.held(0)[0] == 1


def test_a_synchronous_call_in_it_is_refused(two: TwoDatabases) -> None:
    """The message has what to write. A block of its own changes nothing: it marks the whole rollback-only."""

    async def main() -> None:
        async with txpool.transaction():
            with pytest.raises(txpool.ProgrammingError, match=re.escape("`await txpool.aconnect(…)`")):
                two.one.connect()
            await two.insert(1)
            with pytest.raises(txpool.ProgrammingError, match=r"aconnect"), txpool.transaction():
                two.one.connect().execute("insert into t values (7)")

    with pytest.raises(txpool.TransactionRolledBack):  # by the inner block's error
        asyncio.run(main())
    assert two.held(1) == (0, 0)


def test_a_thread_works_in_it(two: TwoDatabases) -> None:
    def work() -> None:
        with closing(two.one.connect()) as connection:
            connection.execute("insert into t values (1)")

    async def main() -> None:
        async with txpool.transaction():
            await asyncio.gather(asyncio.to_thread(work), two_only())

    async def two_only() -> None:
        async with await txpool.aconnect(two.two) as connection:
            await connection.execute("insert into t values (1)")

    asyncio.run(main())
    assert two.held(1) == (1, 1)


def test_synchronous_use_in_a_loop_stays_as_it_is(two: TwoDatabases) -> None:
    async def main() -> None:
        await two.transfer(1, [])
        with txpool.transaction():
            for source in (two.one, two.two):
                with closing(source.connect()) as connection:
                    connection.execute("insert into t values (2)")
            with pytest.raises(txpool.ProgrammingError, match=r"async with txpool\.transaction"):
                await txpool.aconnect(two.one)
        with two.one.connect() as plain:
            plain.execute("select 1")

    asyncio.run(main())
    assert two.held(1) == two.held(2) == (1, 1)


def test_a_coroutine_function(two: TwoDatabases) -> None:
    """Synchronous connections work in it as they did before; asynchronous ones join it, too."""

    @txpool.transactional
    async def work(value: int, fails: bool = False) -> None:
        await two.insert(value)
        with closing(two.one.connect()) as connection:
            connection.execute("insert into t values (%s)", (value + 1,))
        if fails:
            raise ValueError(value)

    async def main() -> None:
        await work(1)
        with pytest.raises(ValueError, match="3"):
            await work(3, fails=True)
        assert txpool.current() is None

    asyncio.run(main())
    assert (two.held(1), two.held(2), two.held(3)) == ((1, 1), (1, 0), (0, 0))


def test_attempts_of_a_task_group(two: TwoDatabases) -> None:
    """A conflict within an ExceptionGroup is attempted again."""
    two.databases.execute("one", "insert into t values (0)")
    attempted = 0

    @txpool.transactional(isolation="serializable", attempts=3)
    async def work() -> None:
        nonlocal attempted
        attempted += 1

        async def child() -> None:
            async with await txpool.aconnect(two.one) as connection:
                await connection.execute("select a from t")
                if attempted == 1:
                    await asyncio.to_thread(two.databases.execute, "one", "update t set a = a + 1")
                await connection.execute("update t set a = a + 10")

        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    asyncio.run(work())
    assert attempted == 2
    assert two.held(11) == (1, 0)


def test_nested_and_independent_blocks(two: TwoDatabases) -> None:
    async def main() -> None:
        begun: list[txpool.Transaction] = []
        await asyncio.gather(*(two.transfer(value, begun) for value in range(10)))
        assert len({each.gtrid for each in begun}) == 10
        async with txpool.transaction() as outer:
            await two.transfer(10, begun)
            assert begun[-1] is outer

    asyncio.run(main())
    assert {two.held(value) for value in range(11)} == {(1, 1)}


def test_a_savepoint(two: TwoDatabases) -> None:
    async def main() -> None:
        async with txpool.transaction(), await txpool.aconnect(two.one) as connection:
            await connection.execute("insert into t values (1)")
            with pytest.raises(ZeroDivisionError):
                async with connection.transaction():
                    await connection.execute("insert into t values (2)")
                    raise ZeroDivisionError
            async with connection.cursor() as cursor:
                await cursor.executemany("insert into t values (%s)", [(3,), (4,)])
                await cursor.execute("select a from t order by a")
                assert [row async for row in cursor] == [(1,), (3,), (4,)]

    asyncio.run(main())


def test_what_is_not_there_says_so(two: TwoDatabases) -> None:
    async def main() -> None:
        async with await txpool.aconnect(two.one) as connection:
            with pytest.raises(AttributeError, match=r"cancel.*cancel_safe"):
                connection.cancel()
            with pytest.raises(AttributeError, match=r"callproc.*to_thread"):
                connection.cursor().callproc("now")
            with pytest.raises(AttributeError, match="no attribute"):
                connection.nonsense()

    asyncio.run(main())
    with pytest.raises(txpool.ConfigurationError, match=r"asyncpg.*aconnect"):
        txpool.connect("postgresql+asyncpg://localhost/orders")


@pytest.mark.parametrize("required", ["warn", "strict"])
def test_a_statement_outside_any_transaction(two: TwoDatabases, required: str) -> None:
    """A warning, at the program's own line; or it is refused."""
    server = two.databases.server
    options: dict[str, Any] = {"driver": "psycopg", "mode": "xa", "transaction_required": required}
    options["password"] = server.password

    async def main(source: txpool.DataSource) -> None:
        async with txpool.transaction(), await txpool.aconnect(source) as connection:
            await connection.execute("insert into t values (1)")
        async with await txpool.aconnect(source) as connection:
            copying = connection.cursor().copy("copy t from stdin")
            if required == "strict":
                with pytest.raises(txpool.ProgrammingError, match=r"transaction\.required = strict"):
                    await copying.__aenter__()
            for execute in (connection.execute, connection.cursor().execute):
                if required == "strict":
                    with pytest.raises(txpool.ProgrammingError, match=r"transaction\.required = strict"):
                        await execute("insert into t values (2)")
                    continue
                with pytest.warns(txpool.OutsideTransactionWarning) as warned:
                    await execute("select 1")
                assert [each.filename for each in warned] == [__file__]

    with txpool.DataSource(name="checked", url=server.url("one"), **options) as source:
        asyncio.run(main(source))
    assert two.held(1) == (1, 0)
    assert two.held(2) == (0, 0)


def test_two_loops_at_once(two: TwoDatabases) -> None:
    """Each in a thread of its own, over the same pools and the same log."""

    async def main(first: int) -> None:
        await asyncio.gather(*(two.transfer(first + value, []) for value in range(30)))

    threads = [threading.Thread(target=asyncio.run, args=(main(first),)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for name in ("one", "two"):
        assert two.databases.rows(name, "select count(*) from t") == [(60,)]


def test_a_forked_child_begins_anew(two: TwoDatabases) -> None:
    """The thread that writes the log for tasks is not in it."""
    asyncio.run(two.transfer(1, []))
    child = os.fork()
    if not child:
        try:
            asyncio.run(two.transfer(2, []))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    asyncio.run(two.transfer(3, []))
    assert {two.held(value) for value in (1, 2, 3)} == {(1, 1)}


def test_an_abandoned_generator_rolls_back(two: TwoDatabases) -> None:
    """Nobody finishes it. A thread rolls back, and the connections come back."""

    async def rows() -> AsyncIterator[int]:
        async with txpool.transaction():
            await two.insert(1)
            yield 1
            yield 2

    async def main() -> None:
        async for row in rows():
            assert row == 1
            break

    asyncio.run(main())
    until(lambda: two.one.statistics().taken == two.two.statistics().taken == 0)
    assert two.held(1) == (0, 0)


def test_a_resource_of_ones_own(two: TwoDatabases, tmp_path: Path) -> None:
    """It begins and ends in threads."""
    folder = tmp_path / "outbox"
    folder.mkdir()
    resource = Outbox("outbox", folder)

    async def main() -> None:
        async with txpool.transaction() as transaction:
            letters = await transaction.enlist(resource)
            assert await asyncio.to_thread(transaction.enlist, resource) is letters
            letters.write(b"hello")
            await two.insert(1)

        await decorated()

    @txpool.transactional
    async def decorated() -> None:
        """Synchronous calls work in it."""
        letters = txpool.current().enlist(resource)  # type: ignore[union-attr]
        letters.write(b"hello, too")
        await two.insert(2)

    asyncio.run(main())
    assert two.held(1) == two.held(2) == (1, 1)
    assert sorted(each.read_bytes() for each in folder.iterdir() if each.is_file()) == [b"hello", b"hello, too"]


def test_who_holds_a_connection_for_long(two: TwoDatabases, caplog: pytest.LogCaptureFixture) -> None:
    """The report names the line of the program's that has taken it."""
    server = two.databases.server
    options: dict[str, Any] = {"driver": "psycopg", "mode": "xa", "pool_leak_threshold": 0.01}
    options["password"] = server.password

    def reports() -> list[str]:
        return [text for each in caplog.records if "has not come back yet" in (text := each.getMessage())]

    async def main(source: txpool.DataSource) -> None:
        while not any("taken at" in each for each in reports()):  # one may come before the line is noted
            before = len(reports())
            async with await txpool.aconnect(source):
                while len(reports()) == before:
                    await asyncio.sleep(0.01)

    with txpool.DataSource(name="leaks", url=server.url("one"), **options) as source:
        asyncio.run(main(source))
    assert __file__ in caplog.text
