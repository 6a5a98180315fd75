"""Each kind of driver in a task: PostgreSQL and PyMySQL wait in the loop, what only blocks does so in threads."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases, struck_at
from tests.support.mysql import MySQLServer

if TYPE_CHECKING:
    from tests.support.jdbc_places import JdbcPlaces
    from tests.support.mysql import RequireDriver


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[txpool.DataSource]:
    """A marked SQLite file."""
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as made:
        made.execute("pragma journal_mode = wal")
        made.execute("create table t (a integer primary key)")
    source = txpool.DataSource(
        name="ledger", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/ledger.db", cmr_batch_size=1
    )
    source.xids_table().create()  # type: ignore[attr-defined]
    yield source
    source.close()


@pytest.fixture
def shop(mariadb: MySQLServer) -> Iterator[txpool.DataSource]:
    mariadb.empty()
    mariadb.execute("create table t (a integer primary key)", database="one")
    source = txpool.DataSource(
        name="shop", driver="pymysql", mode="xa", url=mariadb.url("one"), password=mariadb.password
    )
    yield source
    source.close()


async def insert(source: txpool.DataSource, value: int) -> None:
    async with await txpool.aconnect(source) as connection, connection.cursor() as cursor:
        await cursor.execute(f"insert into t values ({value})")


def rows(source: txpool.DataSource) -> list[int]:
    with closing(source.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("select a from t order by a")
        return [int(row[0]) for row in cursor.fetchall()]


async def sweep(sources: list[txpool.DataSource], held: list[set[int]]) -> None:
    """A task is cancelled at each of its switches, and what each database has then is the same."""

    async def work(value: int) -> None:
        async with txpool.transaction():
            for source in sources:
                await insert(source, value)

    await work(0)
    number, reached = 1, True
    while reached:
        task = asyncio.ensure_future(work(number))
        with struck_at(number, task.cancel) as switches:
            await asyncio.wait([task])
        reached = len(switches) >= number
        assert task.cancelled() or task.exception() is None
        for found, source in zip(held, sources, strict=True):
            found.update(await asyncio.to_thread(rows, source))
        assert held[1:] == held[:-1], f"torn at switch {number}"
        number += 1
    assert len(held[0]) < number - 1  # some rolled back


def test_mariadb_and_postgresql(two: TwoDatabases, shop: txpool.DataSource, mariadb: MySQLServer) -> None:
    held: list[set[int]] = [set(), set()]
    asyncio.run(sweep([shop, two.one], held))
    assert mariadb.prepared() == []
    assert two.prepared == []
    assert len(held[0]) > 1


def test_a_marked_file_and_postgresql(two: TwoDatabases, ledger: txpool.DataSource) -> None:
    held: list[set[int]] = [set(), set()]
    asyncio.run(sweep([two.one, ledger], held))
    assert two.prepared == []
    assert len(held[0]) > 1


def test_all_of_them(two: TwoDatabases, ledger: txpool.DataSource, shop: txpool.DataSource) -> None:
    async def work(value: int) -> None:
        async with txpool.transaction():
            await asyncio.gather(*(insert(source, value) for source in (two.one, shop, two.two, ledger)))

    async def main() -> None:
        for value in range(8):  # one after the other, since the file has one writer
            await work(value)

    asyncio.run(main())
    assert all(rows(source) == [*range(8)] for source in (two.one, two.two, shop, ledger))


def test_a_long_message_and_a_long_answer(two: TwoDatabases, shop: txpool.DataSource, mariadb: MySQLServer) -> None:
    mariadb.execute("create table long_texts (a longtext)", database="one")
    two.databases.execute("one", "create table long_texts (a text)")
    text = "x" * 3_000_000

    async def main() -> None:
        async with txpool.transaction():
            for source in (shop, two.one):
                async with await txpool.aconnect(source) as connection, connection.cursor() as cursor:
                    await cursor.execute("insert into long_texts values (%s)", (text,))
                    await cursor.execute("select a from long_texts")
                    assert await cursor.fetchone() == (text,)

    asyncio.run(main())


async def goes_on_while_a_row_is_locked(source: txpool.DataSource, two: TwoDatabases) -> None:
    """Of the table t, which has the row 1. A commit behind that waits for nobody."""

    async def change() -> None:
        async with txpool.transaction():
            async with await txpool.aconnect(source) as connection, connection.cursor() as cursor:
                await cursor.execute("update t set id = 2")
            await two.insert(100)

    def lock() -> Any:
        held = source.connect()
        held.cursor().execute("update t set id = 1")
        return held

    held = await asyncio.to_thread(lock)
    task = asyncio.create_task(change())
    for value in range(5):
        await two.transfer(value, [])
    assert not task.done()
    await asyncio.to_thread(held.rollback)
    await asyncio.to_thread(held.close)
    await task
    assert two.held(100) == (1, 1)


@pytest.mark.parametrize("driver", ["pymysql", "mysqlclient"])
def test_the_loop_goes_on_while_mariadb_locks_a_row(
    two: TwoDatabases, mariadb: MySQLServer, require_driver: RequireDriver, driver: str
) -> None:
    require_driver(driver)
    mariadb.empty()
    mariadb.execute("create table t (id integer primary key)", "insert into t values (1)", database="one")
    options: dict[str, Any] = {"driver": driver, "mode": "xa", "url": mariadb.url("one"), "password": mariadb.password}
    with txpool.DataSource(name="shop", **options) as source:
        asyncio.run(goes_on_while_a_row_is_locked(source, two))
        assert mariadb.prepared() == []


@pytest.mark.slow
def test_the_loop_goes_on_while_a_java_driver_waits(two: TwoDatabases, jdbc_places: JdbcPlaces) -> None:
    source = jdbc_places.open("h2", url=f"jdbc:h2:file:{jdbc_places.folder}/h2;LOCK_TIMEOUT=60000")
    jdbc_places.execute(source, "insert into t values (1)")
    asyncio.run(goes_on_while_a_row_is_locked(source, two))
    assert jdbc_places.rows(source) == [2]


def test_the_loop_goes_on_while_a_file_is_locked(tmp_path: Path, ledger: txpool.DataSource, two: TwoDatabases) -> None:
    async def main() -> None:
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            task = asyncio.create_task(insert(ledger, 1))
            for value in range(5):
                await two.transfer(value, [])
            assert not task.done()
            other.execute("commit")
        await task

    asyncio.run(main())
    assert rows(ledger) == [1]
