"""The end of a transaction whose connection another thread holds: it waits for that until its deadline, and no longer.

The thread had the transaction from a copy of the context.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from tests.integration.tm.three_databases import ThreeDatabases
from tests.support.proxy import Proxy
from tests.support.waiting import SECONDS, until
from txpool.resources.deadlines import Deadlines

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.support.jdbc_places import JdbcPlaces
    from tests.support.mysql import MySQLServer, RequireDriver

SLEEPS = "select 1 from pg_stat_activity where wait_event = 'PgSleep'"


class Holder:
    """A thread that holds a connection, does nothing with it once it `holds`, and goes on once it may."""

    def __init__(self) -> None:
        self.holds, self.goes_on = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def start(self, work: Callable[..., object], *arguments: Any) -> None:
        self.thread = threading.Thread(target=copy_context().run, args=(self._run, work, arguments), name="the holder")
        self.thread.start()

    def _run(self, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self.error = error

    def idle(self) -> None:
        self.holds.set()
        assert self.goes_on.wait(SECONDS)

    def join(self) -> None:
        self.goes_on.set()
        self.thread.join()


def begun() -> txpool.transaction:
    return txpool.transaction(timeout=600)


def overdue(transaction: txpool.Transaction, way: str) -> None:
    """Its time is up. Left by an error, which this raises, it rolls back, and its timer finds nothing to do."""
    if way == "deadline":
        transaction.expire(600)
    transaction.deadlines = Deadlines(monotonic() - 600)
    if way == "error":
        raise ZeroDivisionError


@contextmanager
def ends_at_once(way: str) -> Iterator[list[Any]]:
    """Around a transaction that is overdue. Gives a list that gets its error."""
    heard: list[Any] = []
    with pytest.raises(ZeroDivisionError if way == "error" else txpool.TransactionTimeout) as raised:
        yield heard
    heard.append(raised.value)


HOLDS: dict[str, Callable[[Any, Holder], None]] = {}


def holds(kind: str) -> Callable[[Callable[[Any, Holder], None]], None]:
    def add(work: Callable[[Any, Holder], None]) -> None:
        HOLDS[kind] = work

    return add


@holds("COPY")
def copy(connection: Any, holder: Holder) -> None:
    with connection.cursor().copy("copy t from stdin") as copy:
        copy.write_row((2,))
        holder.idle()
        for value in range(3, 100_000):
            copy.write_row((value,))


@holds("pipeline")
def pipeline(connection: Any, holder: Holder) -> None:
    with connection.pipeline():
        connection.execute("insert into t values (2)")
        holder.idle()
        connection.execute("insert into t values (3)").fetchall()


@holds("stream")
def stream(connection: Any, holder: Holder) -> None:
    for _ in connection.cursor().stream("select generate_series(1, 10000000)"):
        if not holder.holds.is_set():
            holder.idle()


@pytest.mark.parametrize("way", ["deadline", "error"])
@pytest.mark.parametrize("kind", HOLDS)
def test_a_thread_that_idles_in_a_block(
    world: ThreeDatabases, caplog: pytest.LogCaptureFixture, kind: str, way: str
) -> None:
    holder = Holder()
    with ends_at_once(way) as heard, txpool.transaction(timeout=600) as transaction:
        world.insert(world.two)
        with closing(txpool.connect(world.one)) as connection:
            holder.start(HOLDS[kind], connection, holder)
            assert holder.holds.wait(SECONDS)
            overdue(transaction, way)
    still_holds = holder.thread.is_alive()
    holder.join()
    assert still_holds
    assert transaction.status is txpool.Status.ROLLED_BACK
    (told,) = [each.getMessage() for each in caplog.records if "the holder" in each.getMessage()]
    assert f"a {kind} of thread 'the holder'" in told
    if way == "deadline":
        assert told in str(heard[0])
    assert isinstance(holder.error, txpool.OperationalError | psycopg.OperationalError)
    assert transaction.gtrid in str(holder.error)
    until(lambda: world.one.statistics().taken == world.two.statistics().taken == 0)
    assert world.held == (0, 0, 0)
    assert world.databases.prepared() == []
    world.insert(world.one, world.two)


def test_what_was_given_up_is_no_part_of_a_commit(world: ThreeDatabases) -> None:
    """Wherever an interrupt has come behind that."""
    with pytest.raises(txpool.Error, match="closed, and all rolls back"), begun() as transaction:
        world.insert(world.one, world.two)
        transaction._enlisted[world.one.name]._left = True  # type: ignore[attr-defined]
    assert transaction.status is txpool.Status.ROLLED_BACK
    assert world.held == (0, 0, 0)
    until(lambda: world.one.statistics().taken == 0)


@pytest.mark.parametrize("kind", HOLDS)
def test_a_statement_behind_a_thread_that_idles_in_a_block(world: ThreeDatabases, kind: str) -> None:
    holder = Holder()
    with pytest.raises(txpool.TransactionTimeout) as raised, txpool.transaction(timeout=600) as transaction:
        world.insert(world.two)
        with closing(txpool.connect(world.one)) as connection:
            holder.start(HOLDS[kind], connection, holder)
            assert holder.holds.wait(SECONDS)
            overdue(transaction, "deadline")
            with pytest.raises(txpool.TransactionTimeout):
                connection.execute("insert into t values (1)")
    assert holder.thread.is_alive()
    assert f"a {kind} of thread 'the holder'" in str(raised.value)
    holder.join()
    until(lambda: world.one.statistics().taken == 0)
    assert world.held == (0, 0, 0)
    world.insert(world.one, world.two)


@pytest.mark.parametrize("way", ["deadline", "error"])
def test_a_long_statement_of_a_thread_is_cancelled(world: ThreeDatabases, way: str) -> None:
    holder = Holder()
    with (
        ends_at_once(way),
        txpool.transaction(timeout=600) as transaction,
        closing(txpool.connect(world.one)) as connection,
    ):
        holder.start(connection.execute, "select pg_sleep(600)")
        until(lambda: world.databases.rows("two", SLEEPS))
        overdue(transaction, way)
    holder.join()
    assert isinstance(holder.error, txpool.Error)
    until(lambda: not world.databases.rows("two", SLEEPS))  # the connection may be cut before the server is told
    until(lambda: world.one.statistics().taken == 0)
    world.insert(world.one)


@pytest.mark.parametrize("way", ["deadline", "error"])
def test_a_thread_whose_server_does_not_answer(world: ThreeDatabases, way: str) -> None:
    server = world.databases.server
    with (
        closing(Proxy(server.port)) as proxy,
        txpool.DataSource(
            "far",
            driver="psycopg",
            url=world.one.settings.url.replace(f":{server.port}/", f":{proxy.port}/"),
            password=server.password,
        ) as far,
    ):
        holder = Holder()
        with (
            ends_at_once(way),
            txpool.transaction(timeout=600) as transaction,
            closing(txpool.connect(far)) as connection,
        ):
            connection.execute("select 1")
            holder.start(connection.execute, "select pg_sleep(600)")
            until(lambda: world.databases.rows("two", SLEEPS))
            proxy.go_dark()
            overdue(transaction, way)
        holder.thread.join()
        assert isinstance(holder.error, txpool.Error)
        until(lambda: far.statistics().taken == 0)
        proxy.heal()


def test_its_own_statement_whose_server_does_not_answer(world: ThreeDatabases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it answer those who cancel: the connection is closed, and the statement fails."""
    monkeypatch.setattr("txpool.resources.postgresql.driver.CANCEL_TIMEOUT", 0.1)
    monkeypatch.setattr("txpool.dbapi.enlistment._CANCEL_AGAIN", 0.1)
    server = world.databases.server
    url = world.one.settings.url
    with closing(Proxy(server.port)) as proxy:
        url = url.replace(f":{server.port}/", f":{proxy.port}/")
        with txpool.DataSource("far", driver="psycopg", url=url, password=server.password) as far:

            def darken() -> None:
                until(lambda: world.databases.rows("two", SLEEPS))
                proxy.go_dark()
                transaction.expire(600)

            with pytest.raises(txpool.TransactionTimeout), begun() as transaction, closing(far.connect()) as connection:
                connection.execute("select 1")
                expires = threading.Thread(target=darken)
                expires.start()
                with pytest.raises(psycopg.OperationalError, match=transaction.gtrid):
                    connection.execute("select pg_sleep(600)")
            expires.join()
            assert far.statistics().taken == 0
            proxy.heal()


@pytest.mark.parametrize("way", ["deadline", "error"])
def test_a_thread_in_a_statement_of_sqlite(world: ThreeDatabases, way: str) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    holder = Holder()
    with (
        ends_at_once(way),
        txpool.transaction(timeout=600) as transaction,
        closing(txpool.connect(world.ledger)) as connection,
    ):
        connection.create_function("begun", 0, holder.holds.set)
        connection.execute("insert into t values (1)")
        holder.start(lambda: connection.execute(f"select begun(), ({endless})").fetchall())
        assert holder.holds.wait(SECONDS)
        overdue(transaction, way)
    holder.thread.join()
    assert isinstance(holder.error, sqlite3.OperationalError)
    until(lambda: world.ledger.statistics().taken == 0)
    world.insert(world.ledger)
    assert world.held == (0, 0, 0)


@pytest.mark.parametrize("way", ["deadline", "error"])
def test_a_thread_in_a_function_that_sqlite_calls(world: ThreeDatabases, way: str) -> None:
    """Nothing can end that: the connection is closed, and rolls back, once the thread has come back."""
    holder = Holder()
    with (
        ends_at_once(way),
        txpool.transaction(timeout=600) as transaction,
        closing(txpool.connect(world.ledger)) as connection,
    ):
        connection.create_function("idle", 0, holder.idle)
        connection.execute("insert into t values (1)")
        holder.start(lambda: [connection.execute("insert into t values (idle())") for _ in range(2)])
        assert holder.holds.wait(SECONDS)
        overdue(transaction, way)
    still_holds = holder.thread.is_alive()
    holder.join()
    assert still_holds
    assert isinstance(holder.error, sqlite3.ProgrammingError)
    until(lambda: world.ledger.statistics().taken == 0)
    assert world.held == (0, 0, 0)
    world.insert(world.ledger)


SLEEPING = "select 1 from information_schema.processlist where info like '%sleep(600)%' and id <> connection_id()"


@pytest.mark.parametrize("driver", ["pymysql", "mysqlclient"])
@pytest.mark.parametrize("way", ["deadline", "error"])
def test_a_thread_in_a_statement_of_mariadb(
    world: ThreeDatabases, mariadb: MySQLServer, require_driver: RequireDriver, driver: str, way: str
) -> None:
    require_driver(driver)
    mariadb.empty()
    with txpool.DataSource("shop", driver=driver, mode="xa", url=mariadb.url("one"), password=mariadb.password) as shop:
        holder = Holder()
        with (
            ends_at_once(way),
            txpool.transaction(timeout=600) as transaction,
            closing(txpool.connect(shop)) as connection,
        ):
            holder.start(connection.cursor().execute, "select sleep(600)")
            until(lambda: mariadb.execute(SLEEPING))
            overdue(transaction, way)
        holder.thread.join()
        until(lambda: not mariadb.execute(SLEEPING))
        until(lambda: shop.statistics().taken == 0)


@pytest.mark.costly
@pytest.mark.parametrize("way", ["deadline", "error"])
def test_a_thread_in_a_statement_over_jdbc(jdbc_places: JdbcPlaces, databases: Databases, way: str) -> None:
    txpool.configure(node_name="here", log_url="memory:")
    source = jdbc_places.open("postgresql")
    holder = Holder()
    with ends_at_once(way), begun() as transaction, closing(txpool.connect(source)) as connection:
        holder.start(connection.execute, "select pg_sleep(600)")
        until(lambda: databases.rows("two", SLEEPS))
        overdue(transaction, way)
    holder.thread.join()
    assert isinstance(holder.error, txpool.Error)
    until(lambda: not databases.rows("two", SLEEPS))
    until(lambda: source.statistics().taken == 0)
    jdbc_places.execute(source, "insert into t values (1)")
