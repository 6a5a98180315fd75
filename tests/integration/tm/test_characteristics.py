"""Isolation level and read-only, by datasource and by transaction: what begins so, and what the databases refuse."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest

import txpool
from txpool.errors import ConfigurationError
from txpool.tm.ambient import make_ambient
from txpool.tm.manager import configure
from txpool.tm.subordinate import Subordinate

if TYPE_CHECKING:
    from tests.conftest import Databases

SHOW: LiteralString = "select current_setting('transaction_isolation'), current_setting('transaction_read_only')"
LEVELS = ("read-uncommitted", "read-committed", "repeatable-read", "serializable")


class Sources:
    """Datasources over PostgreSQL's databases `one` and `two`, and over one file of SQLite's."""

    def __init__(self, databases: Databases, folder: Path) -> None:
        self.databases = databases
        self.file = folder / "lite.db"
        self._opened = ExitStack()
        for name in ("one", "two"):
            databases.execute(name, "create table t (id integer primary key, n integer)")
            databases.execute(name, "insert into t values (1, 0), (2, 0)")
        with closing(sqlite3.connect(self.file)) as raw:
            raw.executescript("create table t (id integer primary key, n integer); insert into t values (1, 0), (2, 0)")

    def open(self, name: str, at: str = "", **options: Any) -> txpool.DataSource:
        options = {"driver": "psycopg", "password": self.databases.server.password, "pool_max_size": 1, **options}
        return self._opened.enter_context(txpool.DataSource(name=name, url=self.databases.url(at or name), **options))

    def open_lite(self, mode: str = "local", **options: Any) -> txpool.DataSource:
        url = f"sqlite:///{self.file}"
        source = txpool.DataSource(name="lite", driver="sqlite3", mode=mode, url=url, pool_max_size=1, **options)
        if mode == "cmr":
            source.xids_table().create()  # type: ignore[attr-defined]
        return self._opened.enter_context(source)

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def sources(databases: Databases, tmp_path: Path) -> Iterator[Sources]:
    manager = configure(node_name="tests", log_url="memory:")
    opened = Sources(databases, tmp_path)
    yield opened
    opened.close()
    manager.close()


def ask(source: txpool.DataSource, query: str = SHOW) -> Any:
    with closing(source.connect()) as connection:
        return connection.cursor().execute(query).fetchone()


def write(source: txpool.DataSource, number: int = 7) -> None:
    with closing(source.connect()) as connection:
        connection.cursor().execute(f"update t set n = {number} where id = 1")


# -- by datasource ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_each_local_transaction_of_a_datasource_begins_so(sources: Sources, level: str) -> None:
    source = sources.open("one", transaction_isolation=level, transaction_read_only=True)
    begun = (level.replace("-", " "), "on")
    assert ask(source) == begun
    with txpool.transaction():
        assert ask(source) == begun
    for leave in (dirty, set_by_sql, set_on_the_handle, in_autocommit):
        with closing(source.connect()) as connection:
            leave(connection)
        assert ask(source) == begun, leave
        with txpool.transaction():
            assert ask(source) == begun, leave
    assert source.statistics().reset_failures == 0
    assert source.statistics().created == 1


def dirty(connection: Any) -> None:
    connection.execute("select 1")


def set_by_sql(connection: Any) -> None:
    connection.execute("set session characteristics as transaction isolation level read committed, read write")
    connection.commit()


def set_on_the_handle(connection: Any) -> None:
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.read_only = False
    assert connection.execute(SHOW).fetchone() == ("read committed", "off")


def in_autocommit(connection: Any) -> None:
    connection.autocommit = True
    isolation, read_only = connection.execute(SHOW).fetchone()
    assert read_only == "on"
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.execute("update t set n = 9")
    connection.execute("begin")
    assert connection.execute(SHOW).fetchone() == (isolation, "on")


def test_a_datasource_without_a_word_begins_as_its_database_has_it(sources: Sources) -> None:
    source = sources.open("one")
    sources.databases.execute("two", "alter database one set default_transaction_isolation = 'serializable'")
    assert ask(source) == ("serializable", "off")
    sources.databases.execute("two", "alter database one reset default_transaction_isolation")


@pytest.mark.parametrize("enlisted", [False, True])
def test_the_server_refuses_what_a_read_only_datasource_would_write(sources: Sources, enlisted: bool) -> None:
    source = sources.open("one", transaction_read_only=True)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as caught:
        if enlisted:
            with txpool.transaction():
                write(source)
        else:
            write(source)
    assert isinstance(caught.value, txpool.Error)
    assert sources.databases.rows("one", "select n from t where id = 1") == [(0,)]


def test_two_serializable_transactions_of_a_datasource_conflict_and_read_committed_ones_do_not(
    sources: Sources,
) -> None:
    for level in ("serializable", "read-committed"):
        source = sources.open(f"s-{level[:4]}", "one", transaction_isolation=level, pool_max_size=2)
        with closing(source.connect()) as first, closing(source.connect()) as second:
            assert write_skew(first, second) == (level == "serializable")


def write_skew(first: Any, second: Any) -> bool:
    """Two transactions each read what the other writes; whether one of them is refused for that."""
    for connection, number in ((first, 1), (second, 2)):
        connection.execute("select sum(n) from t").fetchone()
        connection.execute("update t set n = n + 1 where id = %s", (number,))
    first.commit()
    try:
        second.commit()
    except psycopg.errors.SerializationFailure:
        return True
    return False


@pytest.mark.parametrize("mode", ["local", "cmr"])
def test_sqlite_refuses_what_a_read_only_datasource_would_write(sources: Sources, mode: str) -> None:
    source = sources.open_lite(mode, transaction_read_only=True, transaction_isolation="serializable")
    for _ in range(2):
        for statement in ("update t set n = 7", "create table u (n)", "create temp table u (n)", "delete from t"):
            with pytest.raises(sqlite3.OperationalError, match="readonly"), closing(source.connect()) as connection:
                connection.execute(statement)
            with pytest.raises(sqlite3.OperationalError, match="readonly"), txpool.transaction():
                source.connect().execute(statement)
        for way in ("pragma query_only = off", "PRAGMA\nmain . Query_Only(0)", 'pragma "query_only" = 0'):
            with closing(source.connect()) as connection:
                for execute in (connection.execute, connection.executescript):
                    with pytest.raises(txpool.ProgrammingError, match="read-only here"):
                        execute(way)
            with pytest.raises(txpool.ProgrammingError, match="read-only here"), txpool.transaction():
                source.connect().execute(way)
        with closing(source.connect()) as connection:
            assert connection.execute("pragma query_only").fetchone() == (1,)
            connection.execute("pragma cache_size = 7")  # it is opened anew for the next
    assert ask(source, "select n from t where id = 1") == (0,)


def test_a_read_only_reader_in_sqlite_waits_for_no_writer(sources: Sources) -> None:
    source = sources.open_lite(transaction_read_only=True, driver_timeout="0")
    with closing(sqlite3.connect(sources.file, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        with txpool.transaction():
            assert ask(source, "select n from t where id = 1") == (0,)


@pytest.mark.parametrize("level", ["read-uncommitted", "read-committed", "repeatable-read"])
def test_sqlite_has_no_other_level(sources: Sources, level: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"transaction\.isolation.*serializable.*{level}"):
        sources.open_lite(transaction_isolation=level)


def test_what_is_no_level(sources: Sources) -> None:
    with pytest.raises(ConfigurationError, match=r"transaction\.isolation.*serializable"):
        sources.open("one", transaction_isolation="snapshot")
    with pytest.raises(ConfigurationError, match=r"transaction\.read-only"):
        sources.open("one", transaction_read_only="perhaps")


# -- by transaction -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_every_branch_of_a_transaction_begins_so_and_the_next_user_as_before(sources: Sources, level: str) -> None:
    one = sources.open("one", transaction_isolation="repeatable-read", transaction_read_only=True)
    two = sources.open("two")
    for begun in (level, level.upper().replace("-", " "), level.replace("-", "_")):
        with txpool.transaction(isolation=begun, read_only=False):  # type: ignore[arg-type]
            assert ask(one) == ask(two) == (level.replace("-", " "), "off")
            write(one)
            write(two)
        with txpool.transaction(read_only=True):
            assert ask(one) == ("repeatable read", "on")
            assert ask(two) == ("read committed", "on")
        assert ask(one) == ("repeatable read", "on")
        assert ask(two) == ("read committed", "off")
    for name in ("one", "two"):
        assert sources.databases.rows(name, "select n from t where id = 1") == [(7,)]


def test_begin_and_decorated_functions_begin_so(sources: Sources) -> None:
    one = sources.open("one")
    begun = txpool.begin(isolation="serializable", read_only=True)
    assert ask(one) == ("serializable", "on")
    assert (begun.characteristics.isolation, begun.characteristics.read_only) == ("serializable", True)
    txpool.commit()

    @txpool.transactional(isolation="serializable", read_only=True)
    def sync() -> Any:
        return ask(one)

    @txpool.transactional("requires_new", isolation="repeatable-read")
    async def coroutine() -> Any:
        return ask(one)

    assert sync() == ("serializable", "on")
    assert asyncio.run(coroutine()) == ("repeatable read", "off")
    assert ask(one) == ("read committed", "off")


@pytest.mark.parametrize(("level", "refused"), [("serializable", True), ("read-committed", False)])
def test_a_serialization_failure_over_two_databases_occurs_at_serializable_alone(
    sources: Sources, level: Any, refused: bool
) -> None:
    """And nothing of the refused transaction stays in the other database."""
    one, two = sources.open("one", pool_max_size=2), sources.open("two", pool_max_size=2)

    def work(number: int) -> None:
        with closing(one.connect()) as connection:
            connection.cursor().execute("select sum(n) from t").fetchone()
            connection.cursor().execute("update t set n = n + 1 where id = %s", (number,))
        with closing(two.connect()) as connection:
            connection.cursor().execute("update t set n = n + 1 where id = %s", (number,))

    first = txpool.begin(isolation=level)
    work(1)
    txpool.suspend()
    second = txpool.begin(isolation=level)
    work(2)
    txpool.suspend()
    first.commit()
    if refused:
        with pytest.raises(txpool.TransactionRolledBack):
            second.commit()
    else:
        second.commit()
    for name in ("one", "two"):
        rows = sources.databases.rows(name, "select n from t order by id")
        assert rows == [(1,), (0,) if refused else (1,)], name
    assert sources.databases.rows("one", "select gid from pg_prepared_xacts") == []


def test_attempts_repeat_what_serializable_refuses(sources: Sources) -> None:
    one = sources.open("one", pool_max_size=2)
    other = psycopg.connect(sources.databases.server.dsn("one"))
    tries = []

    @txpool.transactional(isolation="serializable", attempts=3)
    def work() -> None:
        tries.append(1)
        with closing(one.connect()) as connection:
            connection.cursor().execute("select sum(n) from t").fetchone()
            if len(tries) == 1:
                other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
                other.execute("select sum(n) from t")
                other.execute("update t set n = 5 where id = 2")
                other.commit()
            connection.cursor().execute("update t set n = 6 where id = 2")

    work()
    other.close()
    assert len(tries) == 2
    assert sources.databases.rows("one", "select n from t where id = 2") == [(6,)]


@pytest.mark.parametrize("level", [None, "serializable"])
def test_a_read_only_transaction_decides_nothing_and_writes_no_mark(sources: Sources, level: Any) -> None:
    one, two, lite = sources.open("one"), sources.open("two"), sources.open_lite("cmr")
    book = sources.open("book", "one", mode="cmr")
    book.xids_table().create()  # type: ignore[attr-defined]
    for marked in (lite, book):
        rows = ask(marked, "select count(*) from xids")
        with txpool.transaction(isolation=level, read_only=True):
            for source in (one, two, marked):
                assert ask(source, "select n from t where id = 2") == (0,)
        assert ask(marked, "select count(*) from xids") == rows
        with txpool.transaction():
            for source in (two, marked):
                write(source)
        assert ask(marked, "select count(*) from xids") == (rows[0] + 1,)
    assert ask(lite, "select n from t where id = 1") == (7,)
    assert ask(lite, "pragma query_only") == (0,)


def test_what_a_read_only_transaction_would_write_is_refused_by_each_database(sources: Sources) -> None:
    one, lite = sources.open("one"), sources.open_lite("cmr")
    for source, error in ((one, psycopg.errors.ReadOnlySqlTransaction), (lite, sqlite3.OperationalError)):
        with pytest.raises(error), txpool.transaction(read_only=True):
            write(source)
        with txpool.transaction():
            write(source)
    assert ask(lite, "select n from t where id = 1") == (7,)


def test_a_datasource_that_cannot_is_refused_and_the_rest_goes_on(sources: Sources) -> None:
    one, lite = sources.open("one"), sources.open_lite("cmr")
    with txpool.transaction(isolation="repeatable-read") as tx:
        write(one)
        with pytest.raises(txpool.ProgrammingError, match=f"lite cannot join {tx.gtrid}.*serializable.*as it was"):
            lite.connect()
        write(one, 8)
    assert sources.databases.rows("one", "select n from t where id = 1") == [(8,)]
    assert lite.statistics().taken == 0
    with txpool.transaction(isolation="serializable"):
        write(one, 9)
        write(lite, 9)
    assert ask(lite, "select n from t where id = 1") == (9,)


def test_a_nested_block_that_asks_for_something_else_is_refused(sources: Sources) -> None:
    one = sources.open("one")
    with txpool.transaction(isolation="serializable", read_only=True):
        for same in ({}, {"isolation": "SERIALIZABLE"}, {"read_only": True}):
            with txpool.transaction(**same):
                ask(one)
        for other in ({"isolation": "read-committed"}, {"read_only": False}):
            with pytest.raises(txpool.ProgrammingError, match="outermost"), txpool.transaction(**other):
                pytest.fail("it is not entered")
            with pytest.raises(txpool.ProgrammingError, match="requires_new"):
                txpool.transactional(**other)(ask)(one)
            with pytest.raises(txpool.ProgrammingError, match="outermost"):
                txpool.transactional("mandatory", **other)(ask)(one)
        own = sources.open("own", "one")
        assert txpool.transactional("requires_new", isolation="repeatable-read")(ask)(own) == ("repeatable read", "off")
    with txpool.transaction():
        with txpool.transaction(read_only=False):
            write(one)
        for other in ({"isolation": "read-committed"}, {"read_only": True}):
            with pytest.raises(txpool.ProgrammingError, match="no characteristics"), txpool.transaction(**other):
                pytest.fail("it is not entered")
    assert sources.databases.rows("one", "select n from t where id = 1") == [(7,)]


def test_arguments_that_are_none() -> None:
    for wrong in ({"isolation": "snapshot"}, {"isolation": 3}, {"isolation": ""}, {"read_only": "yes"}):
        for use in (txpool.transaction, txpool.transactional, txpool.begin):
            with pytest.raises(txpool.ProgrammingError, match=r"isolation is|read_only is"):
                use(**wrong)
    assert txpool.current() is None
    for propagation in ("supports", "not_supported", "never"):
        with pytest.raises(txpool.ProgrammingError, match="has no use with"):
            txpool.transactional(propagation, read_only=True)
    with pytest.raises(txpool.ProgrammingError, match="writes nothing"):
        txpool.transaction(read_only=True, transaction_id="a", record_in="b")
    with pytest.raises(txpool.ProgrammingError, match="writes nothing"):
        txpool.transactional(read_only=True, transaction_id="a", record_in="b")


def test_a_handles_own_mode_gives_way_to_the_transactions(sources: Sources) -> None:
    one = sources.open("one", pool_max_size=2)
    connection: Any = one.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = False
    with txpool.transaction(isolation="serializable", read_only=True):
        for name, value in (("isolation_level", psycopg.IsolationLevel.READ_COMMITTED), ("read_only", False)):
            with pytest.raises(txpool.ProgrammingError, match=f"{name} cannot be"):
                setattr(connection, name, value)
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        assert connection.execute(SHOW).fetchone() == ("serializable", "on")
    with txpool.transaction(read_only=True):
        assert connection.execute(SHOW).fetchone() == ("repeatable read", "on")
    assert connection.execute(SHOW).fetchone() == ("repeatable read", "off")
    connection.close()


def test_a_subordinate_begins_as_its_driver_says(sources: Sources) -> None:
    one = sources.open("one")
    with txpool.transaction(isolation="serializable", read_only=True) as tx:
        pass
    task = Subordinate(tx.gtrid, write=1, partition=0, attempt=7, characteristics=tx.characteristics)
    token = make_ambient(task)
    try:
        assert ask(one) == ("serializable", "on")
        assert task.prepare() == []
    finally:
        token.var.reset(token)
