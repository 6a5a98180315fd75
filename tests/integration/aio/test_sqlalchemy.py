"""SQLAlchemy's AsyncSession over datasources: with no transaction around, and in one over two databases."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

import txpool
from tests.integration.aio.two_databases import TwoDatabases, struck_at
from tests.support.mysql import MySQLServer
from tests.support.waiting import until


class Base(orm.DeclarativeBase):
    pass


class Fare(Base):
    __tablename__ = "fare"

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(20))


class Row(Base):
    __tablename__ = "t"

    a: orm.Mapped[int] = orm.mapped_column(primary_key=True)


class Fares:
    """An engine over one datasource, and its rows as the synchronous side has them."""

    def __init__(self, source: txpool.DataSource) -> None:
        self.source = source
        self.engine = txpool.create_async_engine(source)

    def read(self) -> list[tuple[int, str]]:
        with closing(self.source.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("select id, name from fare order by id")
            return [tuple(row) for row in cursor.fetchall()]


@pytest.fixture(params=["psycopg", "sqlite3", "pymysql"])
def fares(request: pytest.FixtureRequest, two: TwoDatabases, tmp_path: Path) -> Iterator[Fares]:
    options: dict[str, Any] = {"name": "fares", "managed_commit": "join", "driver": request.param, "mode": "xa"}
    if request.param == "psycopg":
        server = two.databases.server
        options |= {"url": server.url("one"), "password": server.password}
    elif request.param == "pymysql":
        mariadb: MySQLServer = request.getfixturevalue("mariadb")
        mariadb.empty()
        options |= {"url": mariadb.url("one"), "password": mariadb.password}
    else:
        options |= {"url": f"sqlite:///{tmp_path}/fares.db", "mode": "cmr"}
    with txpool.DataSource(**options) as source:
        with closing(source.connect()) as connection:
            connection.cursor().execute("create table fare (id integer primary key, name varchar(20))")
            connection.commit()
        if request.param == "sqlite3":
            source.xids_table().create()
        yield Fares(source)


@pytest.mark.parametrize("inside", [False, True])
def test_a_session(fares: Fares, inside: bool) -> None:
    async def work() -> None:
        async with AsyncSession(fares.engine) as session:
            session.add_all([Fare(id=1, name="a"), Fare(id=2, name="b")])
            await session.commit()
            session.add(Fare(id=3, name="lost"))
            await session.flush()
            await session.rollback()
            fare = (await session.scalars(sa.select(Fare).where(Fare.name == "b"))).one()
            fare.name = "c"
            await session.commit()
            assert await session.run_sync(lambda it: it.query(Fare).count()) == 2
            session.add(Fare(id=5, name="lost"))
            await session.flush()

    async def main() -> None:
        if inside:
            async with txpool.transaction():
                await work()
        else:
            await work()

    asyncio.run(main())
    assert fares.read() == [(1, "a"), (2, "c")]
    assert fares.source.statistics().taken == 0


def test_core(fares: Fares) -> None:
    async def main() -> None:
        async with fares.engine.begin() as connection:
            await connection.execute(sa.insert(Fare), [{"id": n, "name": str(n)} for n in range(100)])
            assert "fare" in await connection.run_sync(lambda it: sa.inspect(it).get_table_names())
        async with txpool.transaction(), fares.engine.connect() as connection:
            async with connection.stream(sa.select(Fare.id).order_by(Fare.id)) as result:
                assert [row.id async for row in result] == [*range(100)]
            assert (await connection.execute(sa.text("select count(*) from fare"))).scalar() == 100
            raw = await connection.get_raw_connection()
            cursor = await raw.driver_connection.cursor().execute("select count(*) from fare")  # type: ignore[union-attr]
            assert await cursor.fetchone() == (100,)
        async with fares.engine.connect() as connection:
            await connection.execute(sa.insert(Fare).values(id=200, name="lost"))

    asyncio.run(main())
    assert len(fares.read()) == 100
    assert fares.source.statistics().taken == 0


def test_many_tasks_on_a_new_engine(fares: Fares) -> None:
    async def work(number: int) -> None:
        async with txpool.transaction(), AsyncSession(fares.engine) as session:
            session.add(Fare(id=number, name=str(number)))
            await session.commit()

    async def main() -> None:
        await asyncio.gather(*(work(number) for number in range(20)))

    asyncio.run(main())
    assert len(fares.read()) == 20


def test_a_connection_that_is_dropped(fares: Fares) -> None:
    """The pool has it back, and nothing of it stays."""

    async def main() -> None:
        connection = await fares.engine.connect()
        await connection.execute(sa.insert(Fare).values(id=1, name="lost"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            del connection
            gc.collect()

    asyncio.run(main())
    until(lambda: fares.source.statistics().taken == 0)
    assert fares.read() == []


# -- two databases -----------------------------------------------------------------------------------------------------


@pytest.fixture
def engines(two: TwoDatabases) -> Iterator[tuple[AsyncEngine, ...]]:
    server = two.databases.server
    options: dict[str, Any] = {"driver": "psycopg", "mode": "xa", "managed_commit": "join", "password": server.password}
    one, two_ = (txpool.DataSource(name=name, url=server.url(name), **options) for name in ("one", "two"))
    two.one.close()
    two.two.close()
    two.one, two.two = one, two_
    yield txpool.create_async_engine(one), txpool.create_async_engine(two_)
    one.close()
    two_.close()


Engines = tuple[AsyncEngine, ...]


async def insert(engines: Engines, value: int) -> None:
    for engine in engines:
        async with AsyncSession(engine) as session:
            session.add(Row(a=value))
            await session.commit()


def test_both_or_none(two: TwoDatabases, engines: Engines) -> None:
    async def main() -> None:
        async with txpool.transaction():
            await insert(engines, 1)
            assert two.held(1) == (0, 0)
        with pytest.raises(ZeroDivisionError):
            async with txpool.transaction():
                await insert(engines, 2)
                raise ZeroDivisionError
        with pytest.raises(sa.exc.IntegrityError):
            async with txpool.transaction():
                await insert(engines, 3)
                await insert(engines, 1)

    asyncio.run(main())
    assert [two.held(value) for value in (1, 2, 3)] == [(1, 1), (0, 0), (0, 0)]
    assert two.prepared == []


def test_sessions_and_connections_are_one_part(two: TwoDatabases, engines: Engines) -> None:
    async def main() -> None:
        async with txpool.transaction():
            await insert(engines, 1)
            async with await txpool.aconnect(two.one) as connection:
                cursor = await connection.execute("select a from t")
                assert await cursor.fetchall() == [(1,)]
            assert two.one.statistics().taken == 1

    asyncio.run(main())


def by_cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def by_cancel_twice(task: asyncio.Task[None]) -> None:
    task.cancel()
    asyncio.get_running_loop().call_soon(task.cancel)


@pytest.mark.parametrize("strike", [by_cancel, by_cancel_twice])
def test_cancelled_at_each_switch(
    two: TwoDatabases, engines: Engines, strike: Callable[[asyncio.Task[None]], None]
) -> None:
    async def transfer(value: int, begun: list[txpool.Transaction]) -> None:
        async with txpool.transaction() as transaction:
            begun.append(transaction)
            await insert(engines, value)

    async def finished(task: Awaitable[None]) -> None:
        await asyncio.wait([asyncio.ensure_future(task)])
        # SQLAlchemy closes a session in a task of its own.
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest)

    async def sweep() -> list[tuple[int, int]]:
        await transfer(0, [])
        outcomes: list[tuple[int, int]] = []
        number, reached = 1, True
        while reached:
            begun: list[txpool.Transaction] = []
            task = asyncio.ensure_future(transfer(number, begun))
            with struck_at(number, lambda task=task: strike(task)) as switches:  # type: ignore[misc]
                await finished(task)
            reached = len(switches) >= number
            assert task.cancelled() or task.exception() is None
            held = two.held(number)
            assert held in ((0, 0), (1, 1)), f"torn at switch {number}"
            assert not begun or (begun[0].status is txpool.Status.COMMITTED) == (held == (1, 1))
            assert two.prepared == []
            assert two.one.statistics().taken == two.two.statistics().taken == 0, f"at switch {number}"
            outcomes.append(held)
            number += 1
        return outcomes

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sa.exc.SAWarning)
        outcomes = asyncio.run(sweep())
    assert {*outcomes} == {(0, 0), (1, 1)}


def test_what_a_cancelled_session_has_not_committed_is_never_kept(two: TwoDatabases, engines: Engines) -> None:
    """Its task goes on within the block, and ends that."""

    async def work(value: int) -> None:
        async with txpool.transaction():
            with suppress(asyncio.CancelledError):
                async with AsyncSession(engines[0]) as session:
                    session.add(Row(a=value))
                    await session.flush()
                    await session.execute(sa.select(Row))
            await insert(engines[1:], value)

    async def sweep() -> list[tuple[int, int]]:
        await work(0)
        outcomes: list[tuple[int, int]] = []
        number, reached = 1, True
        while reached:
            task = asyncio.ensure_future(work(number))
            with struck_at(number, task.cancel) as switches:
                await asyncio.wait([task])
            reached = len(switches) >= number
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, txpool.TransactionRolledBack) or "given up" in str(error)
            outcomes.append(two.held(number))
            assert outcomes[-1][0] == 0, f"at switch {number}"
            number += 1
        return outcomes

    assert {*asyncio.run(sweep())} == {(0, 0), (0, 1)}
    assert two.one.statistics().taken == two.two.statistics().taken == 0


def test_what_a_session_that_nobody_closes_has_not_committed_is_never_kept(two: TwoDatabases, engines: Engines) -> None:
    """SQLAlchemy terminates its connection as it is collected, and cannot wait for a rollback there."""

    async def work() -> None:
        async with txpool.transaction():
            session = AsyncSession(engines[0])
            session.add(Row(a=1))
            await session.flush()
            del session
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", sa.exc.SAWarning)
                gc.collect()
            await insert(engines, 2)

    with pytest.raises(txpool.ProgrammingError, match="and nobody has closed it"):
        asyncio.run(work())
    assert (two.held(1), two.held(2)) == ((0, 0), (0, 0))


def test_a_cancelled_request_leaves_nothing(two: TwoDatabases, engines: Engines) -> None:
    """It waits for a row. Outside any transaction, too."""
    two.databases.execute("one", "insert into t values (0)")

    async def wait(inside: bool) -> None:
        async with AsyncSession(engines[0]) as session:
            if inside:
                async with txpool.transaction():
                    await insert((engines[1],), 5)
                    await session.execute(sa.update(Row).values(a=7))
            else:
                session.add(Row(a=5))
                await session.flush()
                await session.execute(sa.update(Row).where(Row.a == 0).values(a=7))

    async def main() -> None:
        async with await txpool.aconnect(two.two) as other, await txpool.aconnect(two.one) as blocks:
            await blocks.execute("update t set a = 1")
            for inside in (True, False):
                task = asyncio.ensure_future(wait(inside))
                while not await _waiting(other):
                    await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
            await blocks.rollback()

    asyncio.run(main())
    assert two.held(5) == two.held(7) == (0, 0)
    assert two.held(0) == (1, 0)
    assert two.one.statistics().taken == two.two.statistics().taken == 0


async def _waiting(connection: Any) -> bool:
    cursor = await connection.execute("select 1 from pg_stat_activity where wait_event_type = 'Lock'")
    found = await cursor.fetchone()
    await connection.rollback()
    return found is not None


def test_what_is_refused(two: TwoDatabases, engines: Engines) -> None:
    async def main() -> None:
        refused = pytest.raises(txpool.ProgrammingError, match=r"async with txpool\.transaction")
        with txpool.transaction(), refused:
            await insert(engines, 1)
        async with txpool.transaction():
            with pytest.raises(sa.exc.MissingGreenlet):
                engines[0].sync_engine.connect()

    asyncio.run(main())
    with pytest.raises(txpool.ConfigurationError, match=r"pool\.max-size"):
        txpool.create_async_engine(two.one, pool_size=3)
    with pytest.raises(txpool.ConfigurationError, match=r"asyncpg.*create_async_engine"):
        txpool.create_async_engine("postgresql+asyncpg://localhost/orders")
    assert two.held(1) == (0, 0)


@pytest.mark.parametrize("required", ["warn", "strict"])
def test_a_statement_outside_any_transaction(two: TwoDatabases, required: str) -> None:
    """A warning, at the program's own line; or it is refused."""
    server = two.databases.server
    options: dict[str, Any] = {"driver": "psycopg", "mode": "xa", "transaction_required": required}
    options |= {"password": server.password, "managed_commit": "join"}

    async def main(source: txpool.DataSource) -> None:
        engine = txpool.create_async_engine(source)
        async with txpool.transaction(), AsyncSession(engine) as session:
            session.add(Row(a=1))
            await session.commit()
        async with AsyncSession(engine) as session:
            statement = sa.text("insert into t values (2)")
            if required == "strict":
                with pytest.raises(txpool.ProgrammingError, match=r"transaction\.required = strict"):
                    await session.execute(statement)
                return
            with pytest.warns(txpool.OutsideTransactionWarning) as warned:
                await session.execute(statement)
            assert [each.filename for each in warned] == [__file__]

    with txpool.DataSource(name="checked", url=server.url("one"), **options) as source:
        asyncio.run(main(source))
    assert two.held(1) == (1, 0)
    assert two.held(2) == (0, 0)


@pytest.mark.parametrize("in_task", [True, False])
def test_what_a_new_engine_asks_its_server_names_no_other_line(two: TwoDatabases, in_task: bool) -> None:
    server = two.databases.server
    options: dict[str, Any] = {"driver": "psycopg", "transaction_required": "warn", "password": server.password}
    source = txpool.DataSource(name="checked", url=server.url("one"), **options)
    statement = sa.text("select 1")

    async def main() -> None:
        async with txpool.create_async_engine(source).begin() as connection:
            await connection.execute(statement)

    with source, pytest.warns(txpool.OutsideTransactionWarning) as warned:
        if in_task:
            asyncio.run(main())
        else:
            with txpool.create_engine(source).begin() as connection:
                connection.execute(statement)
    assert {each.filename for each in warned} == {__file__}
