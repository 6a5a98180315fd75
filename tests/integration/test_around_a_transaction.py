"""What becomes of a connection around a transaction: each row of the table, on PostgreSQL and on a marked SQLite."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from txpool.datasource import DataSource
from txpool.errors import (
    InterfaceError,
    PoolClosed,
    ProgrammingError,
    TransactionError,
    TransactionRolledBack,
    TransactionTimeout,
)
from txpool.manager import begin, commit, configure, current, resume, rollback, suspend
from txpool.resources.xids import Xids
from txpool.scope import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


class World:
    """One datasource, and its table as a bare driver connection sees it."""

    def __init__(self, options: dict[str, Any], bare: Callable[[], Any]) -> None:
        self.options = options
        self.bare = bare
        self.opened: list[DataSource] = []
        self.datasource = self.open()

    def open(self, **options: Any) -> DataSource:
        self.opened.append(DataSource(**(self.options | options)))
        return self.opened[-1]

    def read(self) -> list[int]:
        with closing(self.bare()) as raw:
            return [number for (number,) in raw.execute("select n from t order by n").fetchall()]

    def insert(self, connection: Any, number: int) -> None:
        connection.cursor().execute(f"insert into t values ({number})")


@pytest.fixture(autouse=True)
def coordinator() -> Iterator[None]:
    manager = configure(node_name="tests", log_url="memory:")
    yield
    rollback() if current() is not None else None
    manager.close()


@pytest.fixture(params=["psycopg", "sqlite3"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    options: dict[str, Any]
    if request.param == "psycopg":
        databases: Databases = request.getfixturevalue("databases")
        options = {"mode": "xa", "url": databases.url("one"), "password": databases.server.password}
        world = World(
            options | {"name": "one", "driver": request.param},
            lambda: psycopg.connect(databases.dsn("one"), autocommit=True),
        )
    else:
        options = {"mode": "cmr", "url": f"sqlite:///{tmp_path}/one.db", "driver_timeout": 1}
        world = World(
            options | {"name": "one", "driver": request.param},
            lambda: sqlite3.connect(tmp_path / "one.db", isolation_level=None),
        )
        Xids("one", world.datasource.driver_adapter).create()
    with closing(world.bare()) as raw:
        raw.execute("create table t (n integer primary key)")
    yield world
    for datasource in world.opened:
        datasource.close()


# -- which connection ----------------------------------------------------------------------------------------------


def test_a_handle_closed_before_commit(world: World) -> None:
    with transaction():
        first = world.datasource.connect()
        world.insert(first, 1)
        physical = first._home().raw
        first.close()
        assert world.datasource.statistics().taken == 1
        second = world.datasource.connect()
        assert second._home().raw is physical
        assert second.cursor().execute("select n from t").fetchall() == [(1,)]
        assert world.read() == []
    assert world.read() == [1]
    assert world.datasource.statistics().taken == 0


def test_another_thread_in_the_same_transaction(world: World) -> None:
    errors: list[BaseException] = []
    with transaction():
        connection = world.datasource.connect()
        world.insert(connection, 0)

        def work(first: int) -> None:
            try:
                for number in range(first, first + 20):
                    world.insert(connection, number)
                    assert connection.cursor().execute("select 1").fetchall() == [(1,)]
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert len(world.read()) == 81


def test_where_another_transaction_is_ambient(world: World) -> None:
    outer = begin()
    connection = world.datasource.connect()
    cursor = connection.cursor().execute("select 1")
    suspend()
    with transaction():
        for use in (connection.cursor, cursor.fetchone, lambda: cursor.execute("select 1")):
            with pytest.raises(ProgrammingError, match=f"enlisted in {outer.gtrid}, and here .* is ambient"):
                use()
    for use in (connection.cursor, cursor.fetchone, lambda: cursor.execute("select 1")):
        with pytest.raises(ProgrammingError, match="not ambient here: resume"):
            use()
    resume(outer)
    world.insert(connection, 1)
    commit()
    assert world.read() == [1]


def test_open_local_work_when_a_transaction_begins(world: World) -> None:
    connection = world.datasource.connect()
    world.insert(connection, 1)
    with transaction():
        for use in (connection.cursor, lambda: connection.execute("insert into t values (2)")):
            with pytest.raises(ProgrammingError, match=r"open work of its own.*commit\(\) or rollback\(\) it first"):
                use()
        connection.commit()
        world.insert(connection, 3)
        assert world.read() == [1]
    assert world.read() == [1, 3]
    connection.close()


def test_with_is_left_while_enlisted(world: World) -> None:
    with transaction():
        with world.datasource.connect() as connection:
            world.insert(connection, 1)
        with pytest.raises(InterfaceError, match="closed"):
            connection.cursor()
        with pytest.raises(ZeroDivisionError), world.datasource.connect() as connection:
            world.insert(connection, 2)
            raise ZeroDivisionError
        assert world.read() == []
    assert world.read() == [1, 2]


# -- taken before it, used after it --------------------------------------------------------------------------------


def test_taken_before_it_joins_on_its_next_use(world: World) -> None:
    datasource = world.open(pool_max_size=1)  # it cannot hold a place of its own meanwhile
    connection = datasource.connect()
    cursor = connection.cursor()
    cursor.arraysize = 7
    for number in (1, 2):
        with pytest.raises(ZeroDivisionError), transaction():
            cursor.execute(f"insert into t values ({number})")
            raise ZeroDivisionError
        with transaction():
            cursor.execute(f"insert into t values ({10 * number})")
            assert datasource.connect()._home() is connection._home()
            assert cursor.arraysize == 7
            assert cursor.connection is connection
    assert world.read() == [10, 20]
    world.insert(connection, 30)
    assert world.read() == [10, 20]
    connection.commit()
    assert world.read() == [10, 20, 30]
    connection.close()
    assert datasource.statistics().idle == 1


def test_what_was_set_before_it_goes_with_the_handle(world: World) -> None:
    def factory(cursor: Any, *_: Any) -> Any:
        return (lambda row: {"row": tuple(row)}) if world.datasource.driver == "psycopg" else {"row": tuple(_[0])}

    connection = world.datasource.connect()
    connection.row_factory = factory
    with transaction():
        assert connection.execute("select 1").fetchone() == {"row": (1,)}
        assert world.datasource.connect().execute("select 1").fetchone() == (1,)
    assert connection.execute("select 1").fetchone() == {"row": (1,)}
    connection.close()


def test_a_result_of_before_is_gone_after_joining(world: World) -> None:
    connection = world.datasource.connect()
    cursor = connection.cursor().execute("select 1")
    connection.commit()
    with transaction():
        world.insert(connection, 1)
        with pytest.raises(InterfaceError, match="execute again"):
            cursor.fetchone()
        assert cursor.execute("select n from t").fetchall() == [(1,)]
    connection.close()


def test_taken_inside_it_ends_with_it(world: World) -> None:
    with transaction() as tx:
        connection = world.datasource.connect()
        cursor = connection.cursor().execute("select 1")
    assert connection.closed
    for use in (connection.cursor, cursor.fetchone, connection.commit, lambda: cursor.execute("select 1")):
        with pytest.raises(InterfaceError, match=rf"{tx.gtrid}, which has ended \(committed\)"):
            use()
    with transaction(), pytest.raises(InterfaceError, match="has ended"):
        world.insert(connection, 1)
    connection.close()
    assert world.read() == []


# -- its end belongs to the transaction ----------------------------------------------------------------------------


def test_commit_and_rollback_on_it(world: World) -> None:
    with transaction():
        connection = world.datasource.connect()
        world.insert(connection, 1)
        for end in (connection.commit, connection.rollback):
            with pytest.raises(ProgrammingError, match=r"managed\.commit = join"):
                end()
        world.insert(connection, 2)
    assert world.read() == [1, 2]


def test_autocommit_on_it(world: World) -> None:
    name, on, off = (
        ("autocommit", True, False) if world.datasource.driver == "psycopg" else ("isolation_level", None, "")
    )
    for mode in ("refuse", "join"):
        datasource = world.open(managed_commit=mode)
        with pytest.raises(ZeroDivisionError), transaction():
            connection = datasource.connect()
            world.insert(connection, 1)
            with pytest.raises(ProgrammingError, match="owns"):
                setattr(connection, name, on)
            setattr(connection, name, getattr(connection, name))
            world.insert(connection, 2)
            raise ZeroDivisionError
    assert world.read() == []
    connection = world.datasource.connect()
    setattr(connection, name, on)
    with pytest.raises(ZeroDivisionError), transaction():
        world.insert(connection, 3)
        raise ZeroDivisionError
    assert world.read() == []
    world.insert(connection, 4)
    assert world.read() == [4]
    setattr(connection, name, off)
    connection.close()


@pytest.mark.parametrize("command", ["commit", "rollback"])
def test_the_users_own_sql_ends_it(world: World, command: str) -> None:
    with pytest.raises(TransactionError) as caught, transaction():
        connection = world.datasource.connect()
        world.insert(connection, 1)
        with pytest.raises(ProgrammingError, match=f"the SQL {command.upper()} has ended"):
            connection.execute(command)
        with pytest.raises(ProgrammingError, match="rollback-only"):
            world.insert(connection, 2)
    # Nothing can undo what the user's own COMMIT has done; but it is never told as success.
    assert isinstance(caught.value, TransactionRolledBack) == (command == "rollback")
    assert world.read() == ([1] if command == "commit" else [])


def test_a_failure_of_the_first_statement_ends_nothing(world: World) -> None:
    with transaction():
        connection = world.datasource.connect()
        cursor = connection.cursor()
        cursor.close()
        with pytest.raises(connection.Error):
            cursor.execute("select 1")
        world.insert(connection, 1)
    assert world.read() == [1]


# -- when it goes wrong --------------------------------------------------------------------------------------------


def test_it_timed_out(world: World) -> None:
    before = world.datasource.connect()
    expired = threading.Event()
    with pytest.raises(TransactionTimeout), transaction(timeout=0.05) as tx:
        tx.on_cancel(expired.set)
        connection = world.datasource.connect()
        world.insert(connection, 1)
        assert expired.wait(20)
        for use in (world.datasource.connect, connection.cursor, before.cursor):
            with pytest.raises(TransactionTimeout):
                use()
    assert world.read() == []
    before.close()


def test_it_is_rollback_only(world: World) -> None:
    before = world.datasource.connect()
    with pytest.raises(TransactionRolledBack), transaction() as tx:
        connection = world.datasource.connect()
        world.insert(connection, 1)
        tx.set_rollback_only()
        for use in (world.datasource.connect, connection.cursor, before.cursor):
            with pytest.raises(ProgrammingError, match="rollback-only"):
                use()
    assert world.read() == []
    before.close()


def test_the_pool_is_closed_meanwhile(world: World) -> None:
    idle = world.datasource.connect()
    with transaction():
        connection = world.datasource.connect()
        idle.close() if idle._pooled is not None else None
        world.insert(connection, 1)
        world.datasource.close()
        assert world.datasource.statistics().idle == 0
        world.insert(connection, 2)
        world.insert(world.datasource.connect(), 3)
    assert world.read() == [1, 2, 3]
    assert world.datasource.statistics().size == 0
    with pytest.raises(PoolClosed):
        world.datasource.connect()


@pytest.mark.parametrize("broken", ["orders", "ledger"])
def test_it_is_broken_at_prepare(databases: Databases, tmp_path: Path, broken: str) -> None:
    databases.execute("one", "create table t (n integer primary key)")
    url, password = databases.url("one"), databases.server.password
    with (
        DataSource(name="orders", driver="psycopg", url=url, password=password) as orders,
        DataSource(name="ledger", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/one.db") as ledger,
        closing(sqlite3.connect(tmp_path / "one.db", isolation_level=None)) as bare,
    ):
        bare.execute("create table t (n integer primary key)")
        Xids("ledger", ledger.driver_adapter).create()
        with pytest.raises(TransactionRolledBack), transaction():
            connections = {"orders": orders.connect(), "ledger": ledger.connect()}
            for connection in connections.values():
                connection.execute("insert into t values (1)")
            if broken == "orders":
                pid = connections["orders"].info.backend_pid
                databases.rows("two", "select pg_terminate_backend(%s, 5000)", (pid,))
            else:
                connections["ledger"]._home().raw.close()
        assert databases.rows("one", "select n from t") == bare.execute("select n from t").fetchall() == []
        assert bare.execute("select * from xids where xid <> 'txp1:identity'").fetchall() == []
        assert databases.prepared() == []
        assert {"orders": orders, "ledger": ledger}[broken].statistics().size == 0


# -- managed.commit = join -----------------------------------------------------------------------------------------


@pytest.fixture
def join(world: World) -> DataSource:
    return world.open(managed_commit="join")


def test_a_handle_keeps_and_undoes_what_it_did(world: World, join: DataSource) -> None:
    with transaction():
        connection = join.connect()
        connection.rollback()
        connection.commit()
        world.insert(connection, 1)
        connection.commit()
        world.insert(connection, 2)
        connection.rollback()
        connection.rollback()
        world.insert(connection, 3)
        with pytest.raises(connection.IntegrityError):
            world.insert(connection, 3)
        connection.rollback()
        world.insert(connection, 4)
        connection.close()
        assert world.read() == []
    assert world.read() == [1, 4]
    connection.close()


def test_what_a_handle_kept_goes_with_the_transaction(world: World, join: DataSource) -> None:
    with pytest.raises(ZeroDivisionError), transaction():
        connection = join.connect()
        world.insert(connection, 1)
        connection.commit()
        raise ZeroDivisionError
    assert world.read() == []


def test_two_handles_one_after_another(world: World, join: DataSource) -> None:
    with transaction():
        first, second = join.connect(), join.connect()
        world.insert(first, 1)
        first.commit()
        world.insert(second, 2)
        second.rollback()
        world.insert(first, 3)
        first.rollback()
        world.insert(second, 4)
        second.commit()
    assert world.read() == [1, 4]


def test_two_handles_nested(world: World, join: DataSource) -> None:
    with transaction():
        first, second = join.connect(), join.connect()
        world.insert(first, 1)
        world.insert(second, 2)
        second.rollback()
        world.insert(second, 3)
        second.commit()
        first.commit()
        world.insert(first, 4)
        first.rollback()
    assert world.read() == [1, 3]


def test_a_commit_below_the_top_is_released_later(world: World, join: DataSource) -> None:
    with transaction():
        first, second = join.connect(), join.connect()
        world.insert(first, 1)
        world.insert(second, 2)
        first.commit()
        second.rollback()
        world.insert(first, 3)
        first.rollback()
    assert world.read() == [1]


def test_a_rollback_that_would_undo_anothers_work(world: World, join: DataSource) -> None:
    with pytest.raises(TransactionRolledBack, match="what another has done since"), transaction():
        first, second = join.connect(), join.connect()
        world.insert(first, 1)
        world.insert(second, 2)
        second.commit()
        with pytest.raises(ProgrammingError, match="what another has done since"):
            first.rollback()
        with pytest.raises(ProgrammingError, match="rollback-only"):
            world.insert(second, 3)
        second.rollback()
    assert world.read() == []


def test_rollback_after_its_transaction(world: World, join: DataSource) -> None:
    with transaction():
        connection = join.connect()
        world.insert(connection, 1)
    connection.rollback()
    with pytest.raises(InterfaceError, match="has ended"):
        connection.commit()
    connection.close()
    assert world.read() == [1]


def test_psycopgs_own_blocks_among_the_savepoints(databases: Databases) -> None:
    databases.execute("one", "create table t (n integer primary key)")
    url, password = databases.url("one"), databases.server.password
    with DataSource(name="one", driver="psycopg", url=url, password=password, managed_commit="join") as datasource:
        with transaction():
            first, second = datasource.connect(), datasource.connect()
            with first.transaction():
                first.execute("insert into t values (1)")
                with pytest.raises(ProgrammingError, match="leave the block"):
                    first.commit()
                second.execute("insert into t values (2)")
            second.commit()
            first.commit()
            with first.transaction() as block:
                second.execute("insert into t values (3)")
                raise psycopg.Rollback(block)
            second.rollback()
            first.execute("insert into t values (4)")
            first.commit()
        assert databases.rows("one", "select n from t order by n") == [(1,), (2,), (4,)]
        with pytest.raises(TransactionRolledBack), transaction():
            first, second = datasource.connect(), datasource.connect()
            with first.transaction():
                second.execute("insert into t values (5)")
            with pytest.raises(ProgrammingError, match="what another has done since"):
                second.rollback()
        assert databases.rows("one", "select n from t order by n") == [(1,), (2,), (4,)]
