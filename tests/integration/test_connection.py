"""What a connection does beyond PEP 249: each driver's own ways, its place in the pool, and the registry of names."""

from __future__ import annotations

import copy
import gc
import pickle
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types import TypeInfo
from psycopg.types.numeric import IntLoader

from txpool.datasource import DataSource, connect, register
from txpool.errors import (
    ConfigurationError,
    InterfaceError,
    PoolClosed,
    PoolTimeout,
    ProgrammingError,
    TransactionRolledBack,
)
from txpool.manager import configure
from txpool.scope import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture(autouse=True)
def coordinator() -> Iterator[None]:
    manager = configure(node_name="tests", log_url="memory:")
    yield
    manager.close()


@pytest.fixture
def postgres_source(databases: Databases) -> Iterator[DataSource]:
    databases.execute("one", "create table t (id integer primary key, v text)")
    url, password = databases.url("one"), databases.server.password
    with DataSource(name="one", driver="psycopg", url=url, password=password, pool_max_size=2) as datasource:
        yield datasource


@pytest.fixture
def sqlite_source(tmp_path: Path) -> Iterator[DataSource]:
    with sqlite3.connect(tmp_path / "one.db") as raw:
        raw.execute("create table t (id integer primary key, v text)")
    raw.close()
    url = f"sqlite:///{tmp_path}/one.db"
    with DataSource(name="lite", driver="sqlite3", mode="local", url=url, pool_max_size=2) as datasource:
        yield datasource


def rows(datasource: DataSource) -> list[Any]:
    with datasource.connect() as connection:
        found: list[Any] = connection.cursor().execute("select id, v from t order by id").fetchall()
    connection.close()
    return found


# -- the three ways in which a handle can fail ---------------------------------------------------------------------


def test_the_connection_of_a_cursor_is_the_handle(postgres_source: DataSource) -> None:
    with postgres_source.connect() as connection:
        assert connection.cursor().connection is connection
        assert connection.execute("select 1").connection is connection
        assert connection.connection is connection


def test_a_block_that_outlives_its_connection_disturbs_nobody(postgres_source: DataSource) -> None:
    postgres_source.pool.resize(0, 1)
    connection = postgres_source.connect()
    block = connection.transaction()
    block.__enter__()
    connection.execute("insert into t values (1, 'lost')")
    pid = connection.info.backend_pid
    connection.close()
    with postgres_source.connect() as other:
        assert other.info.backend_pid == pid
        other.execute("insert into t values (2, 'kept')")
        with pytest.raises(InterfaceError, match="outlived"):
            block.__exit__(None, None, None)
        with other.transaction():
            other.execute("insert into t values (3, 'kept')")
    assert rows(postgres_source) == [(2, "kept"), (3, "kept")]


def test_a_result_outlives_the_last_name_of_its_connection(postgres_source: DataSource) -> None:
    cursor = postgres_source.connect().execute("select generate_series(1, 3)")
    gc.collect()
    assert cursor.fetchall() == [(1,), (2,), (3,)]
    cursor.connection.close()


def test_a_dropped_connection_warns_and_its_place_is_free_again(postgres_source: DataSource) -> None:
    postgres_source.pool.resize(0, 1)
    with pytest.warns(ResourceWarning, match="connection to one, plain> was not closed"):
        postgres_source.connect().execute("select 1").fetchone()
        gc.collect()
    with postgres_source.connect(timeout=20) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


# -- psycopg -------------------------------------------------------------------------------------------------------


def test_it_passes_for_the_drivers_own(postgres_source: DataSource, sqlite_source: DataSource) -> None:
    with postgres_source.connect() as connection:
        assert isinstance(connection, psycopg.Connection)
        assert isinstance(connection.cursor(), psycopg.Cursor)
        with connection.cursor(name="n") as cursor:
            assert isinstance(cursor, psycopg.ServerCursor)
        info = TypeInfo.fetch(connection, "text")
        assert info is not None
        assert info.name == "text"
        assert psycopg.sql.Identifier("a b").as_string(connection) == '"a b"'
    other = sqlite_source.connect()
    assert isinstance(other, sqlite3.Connection)
    assert isinstance(other.cursor(), sqlite3.Cursor)
    other.close()


def test_it_passes_for_the_drivers_own_inside_a_transaction(postgres_source: DataSource) -> None:
    with transaction():
        connection = postgres_source.connect()
        info = TypeInfo.fetch(connection, "text")  # by a block and a raw cursor of its own, first of all
        assert info is not None
        with psycopg.Cursor(connection) as cursor:
            cursor.execute("insert into t values (1, 'kept')")
        assert TypeInfo.fetch(connection, "no_such_type") is None
        connection.execute("insert into t values (2, 'kept')")
    assert rows(postgres_source) == [(1, "kept"), (2, "kept")]
    with pytest.raises(ZeroDivisionError), transaction():
        psycopg.Cursor(postgres_source.connect()).execute("insert into t values (3, 'lost')")
        raise ZeroDivisionError
    assert rows(postgres_source) == [(1, "kept"), (2, "kept")]


def test_isolation_is_chosen_before_the_first_statement(postgres_source: DataSource) -> None:
    connection = postgres_source.connect()
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    for _ in range(2):
        with transaction():
            assert connection.execute("show transaction_isolation").fetchone() == ("serializable",)
            other = postgres_source.connect()
            with pytest.raises(ProgrammingError, match="isolation_level"):
                other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.close()
    with transaction():
        connection = postgres_source.connect()
        connection.set_read_only(True)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), connection.transaction():
            connection.execute("insert into t values (1, 'x')")
    with postgres_source.connect() as connection:
        assert connection.execute("show transaction_isolation").fetchone() == ("read committed",)
        connection.execute("insert into t values (2, 'kept')")
    assert rows(postgres_source) == [(2, "kept")]


def test_with_ends_a_plain_connection_as_psycopg_does(postgres_source: DataSource) -> None:
    with postgres_source.connect() as connection:
        connection.execute("insert into t values (1, 'kept')")
    assert connection.closed
    with pytest.raises(ZeroDivisionError), postgres_source.connect() as connection:
        connection.execute("insert into t values (2, 'lost')")
        raise ZeroDivisionError
    assert connection.closed
    assert rows(postgres_source) == [(1, "kept")]


@pytest.mark.parametrize("enlisted", [False, True])
def test_rows_come_as_the_handle_wants_them(postgres_source: DataSource, enlisted: bool) -> None:
    def look() -> None:
        connection, other = postgres_source.connect(), postgres_source.connect()
        connection.row_factory = dict_row
        assert connection.row_factory is dict_row
        assert connection.execute("select 1 as a").fetchone() == {"a": 1}
        assert other.execute("select 1 as a").fetchone() == (1,)
        assert other.cursor(row_factory=dict_row).execute("select 1 as a").fetchone() == {"a": 1}
        assert connection.execute("select 2 as a").fetchone() == {"a": 2}
        connection.close()
        other.close()

    if enlisted:
        with transaction():
            look()
    else:
        look()
    with postgres_source.connect() as first, postgres_source.connect() as second:
        assert first.execute("select 1").fetchone() == second.execute("select 1").fetchone() == (1,)


def test_what_was_set_on_a_connection_is_taken_back(postgres_source: DataSource) -> None:
    postgres_source.pool.resize(0, 1)
    heard: list[str] = []

    class Loud(IntLoader):
        def load(self, data: Any) -> Any:
            return f"{super().load(data)}!"

    connection = postgres_source.connect()
    before = {name: getattr(connection, name) for name in ("prepare_threshold", "prepared_max", "cursor_factory")}
    connection.autocommit = True
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    connection.read_only = True
    connection.prepare_threshold = 1
    connection.prepared_max = 7
    connection.cursor_factory = psycopg.ClientCursor
    connection.adapters.register_loader("int4", Loud)
    connection.add_notice_handler(lambda notice: heard.append(notice.message_primary))
    connection.execute("set search_path to pg_catalog")
    connection.execute("do $$ begin raise notice 'heard'; end $$")
    assert connection.execute("select 1").fetchone() == ("1!",)
    assert heard == ["heard"]
    pid = connection.info.backend_pid
    connection.close()

    with postgres_source.connect() as connection:
        assert connection.info.backend_pid == pid
        assert {name: getattr(connection, name) for name in before} == before
        assert (connection.autocommit, connection.isolation_level, connection.read_only) == (False, None, None)
        assert connection.execute("select 1").fetchone() == (1,)
        assert connection.execute("show search_path").fetchone() == ('"$user", public',)
        connection.execute("do $$ begin raise notice 'not heard'; end $$")
    assert heard == ["heard"]


@pytest.mark.parametrize("enlisted", [False, True])
def test_copy(postgres_source: DataSource, enlisted: bool) -> None:
    def load() -> None:
        with postgres_source.connect() as connection, connection.cursor() as cursor:
            with cursor.copy("copy t from stdin") as copying:
                assert copying.connection is connection
                for row in [(1, "a"), (2, "b")]:
                    copying.write_row(row)
            assert cursor.rowcount == 2
            with cursor.copy("copy t to stdout") as copying:
                assert list(copying.rows()) == [("1", "a"), ("2", "b")]

    if enlisted:
        with transaction():
            load()
    else:
        load()
    assert rows(postgres_source) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("enlisted", [False, True])
def test_server_side_cursors_streams_and_pipelines(postgres_source: DataSource, enlisted: bool) -> None:
    def work() -> None:
        with postgres_source.connect() as connection:
            with connection.cursor(name="n", scrollable=True) as cursor:
                cursor.itersize = 2
                cursor.execute("select generate_series(1, 5)")
                assert cursor.fetchmany(2) == [(1,), (2,)]
                assert [value for (value,) in cursor] == [3, 4, 5]
                cursor.scroll(1, mode="absolute")
                assert cursor.fetchone() == (2,)
            assert list(connection.cursor().stream("select generate_series(1, 3)")) == [(1,), (2,), (3,)]
            with connection.pipeline():
                cursor = connection.cursor()
                cursor.execute("insert into t values (1, 'a')")
                cursor.execute("insert into t values (2, 'b') returning id")
                assert cursor.fetchone() == (2,)
                connection.execute("insert into t values (3, 'c')")
            several = connection.execute("select 1; select 2")
            assert [result.fetchone() for result in several.results()] == [(1,), (2,)]

    if enlisted:
        with transaction():
            work()
    else:
        work()
    assert rows(postgres_source) == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("enlisted", [False, True])
def test_blocks_of_psycopgs_own(postgres_source: DataSource, enlisted: bool) -> None:
    def work() -> None:
        with postgres_source.connect() as connection:
            with connection.transaction() as outer:
                assert outer.connection is connection
                connection.execute("insert into t values (1, 'kept')")
                with connection.transaction() as inner:
                    connection.execute("insert into t values (2, 'undone')")
                    raise psycopg.Rollback(inner)
            with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
                connection.execute("insert into t values (3, 'undone')")
                connection.execute("insert into t values (1, 'again')")
            with connection.transaction(force_rollback=True):
                connection.execute("insert into t values (4, 'undone')")
            with connection.pipeline(), connection.transaction():
                connection.execute("insert into t values (5, 'kept')")

    if enlisted:
        with transaction():
            work()
            assert postgres_source.connect().execute("select count(*) from t").fetchone() == (2,)
    else:
        work()
    assert rows(postgres_source) == [(1, "kept"), (5, "kept")]


def test_a_block_around_the_end_of_its_transaction(postgres_source: DataSource) -> None:
    postgres_source.pool.resize(0, 1)
    with transaction() as tx:
        block = postgres_source.connect().transaction()
        block.__enter__().connection.execute("insert into t values (1, 'kept')")
    assert tx.ended
    with pytest.raises(InterfaceError, match="outlived"):
        block.__exit__(None, None, None)
    with postgres_source.connect() as connection, connection.transaction():
        connection.execute("insert into t values (2, 'kept')")
    assert rows(postgres_source) == [(1, "kept"), (2, "kept")]


def test_a_lost_connection_is_closed_and_replaced(postgres_source: DataSource, databases: Databases) -> None:
    connection = postgres_source.connect()
    pid = connection.info.backend_pid
    databases.rows("two", "select pg_terminate_backend(%s, 5000)", (pid,))
    with pytest.raises(psycopg.OperationalError) as caught:
        connection.execute("select 1")
    assert isinstance(caught.value, connection.OperationalError)
    assert connection.closed
    assert connection.broken
    connection.close()
    with postgres_source.connect() as connection:
        assert connection.info.backend_pid != pid


# -- sqlite3 -------------------------------------------------------------------------------------------------------


def test_with_ends_a_plain_connection_as_sqlite3_does(sqlite_source: DataSource) -> None:
    connection = sqlite_source.connect()
    with connection:
        connection.execute("insert into t values (1, 'kept')")
    with pytest.raises(ZeroDivisionError), connection:
        connection.execute("insert into t values (2, 'lost')")
        raise ZeroDivisionError
    connection.executemany("insert into t values (?, ?)", [(3, "kept"), (4, "kept")])
    connection.commit()
    assert connection.cursor().execute("insert into t values (9, 'lost')").lastrowid == 9
    connection.close()
    assert rows(sqlite_source) == [(1, "kept"), (3, "kept"), (4, "kept")]


def test_sqlite3s_own_attributes_and_methods(sqlite_source: DataSource) -> None:
    sqlite_source.pool.resize(0, 1)
    connection = sqlite_source.connect()
    connection.row_factory = sqlite3.Row
    connection.text_factory = bytes
    connection.isolation_level = None
    connection.create_function("twice", 1, lambda x: x * 2)
    connection.executescript("insert into t values (1, 'a'); insert into t values (2, 'b')")
    assert connection.execute("select twice(id) as d, v from t").fetchone()["d"] == 2
    assert connection.execute("select v from t").fetchone()[0] == b"a"
    assert connection.total_changes == 2
    assert not connection.in_transaction
    assert any("INSERT" in line for line in (line.decode() if isinstance(line, bytes) else line for line in ["INSERT"]))
    connection.close()
    connection = sqlite_source.connect()
    assert connection.execute("select v from t").fetchone() == ("a",)
    assert connection.isolation_level is not None
    connection.close()


def test_a_result_that_is_not_read_to_its_end_holds_nothing_open(sqlite_source: DataSource, tmp_path: Path) -> None:
    connection = sqlite_source.connect()
    connection.executemany("insert into t values (?, 'x')", [(n,) for n in range(500)])
    connection.commit()
    unread = connection.execute("select * from t")
    unread.fetchone()
    connection.close()
    with transaction():
        unread_too = sqlite_source.connect().execute("select * from t")
        unread_too.fetchone()
    raw = sqlite3.connect(tmp_path / "one.db", isolation_level=None, timeout=0)
    raw.execute("drop table t")  # needs every reader gone
    raw.close()
    for cursor in (unread, unread_too):
        with pytest.raises(InterfaceError):
            cursor.fetchone()


def test_a_script_inside_a_transaction_is_refused(sqlite_source: DataSource) -> None:
    with transaction():
        connection = sqlite_source.connect()
        connection.execute("insert into t values (1, 'kept')")
        for script in (connection.executescript, connection.cursor().executescript):
            with pytest.raises(ProgrammingError, match="one by one"):
                script("insert into t values (2, 'x')")
    assert rows(sqlite_source) == [(1, "kept")]


# -- the pool and the registry -------------------------------------------------------------------------------------


def test_waiting_is_bounded(sqlite_source: DataSource) -> None:
    held = [sqlite_source.connect() for _ in range(2)]
    with pytest.raises(PoolTimeout, match="lite"):
        sqlite_source.connect(timeout=0.01)
    for connection in held:
        connection.close()
    assert sqlite_source.statistics().idle == 2


def test_a_plain_connection_may_change_threads(sqlite_source: DataSource) -> None:
    connection = sqlite_source.connect()
    worker = threading.Thread(target=lambda: connection.execute("insert into t values (1, 'thread')"))
    worker.start()
    worker.join()
    connection.commit()
    connection.close()
    assert rows(sqlite_source) == [(1, "thread")]


def test_what_a_datasource_cannot_do_in_its_mode(postgres_source: DataSource, sqlite_source: DataSource) -> None:
    assert postgres_source.resource_manager().recover() == []
    with pytest.raises(ConfigurationError, match="only mode=cmr"):
        postgres_source.xids_table()
    with pytest.raises(ConfigurationError, match="only mode=xa"):
        sqlite_source.resource_manager()


def test_a_last_resource_commits_with_the_others(postgres_source: DataSource, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    with DataSource(name="audit", driver="sqlite3", mode="last-resource", url=url) as audit:
        with closing(audit.connect()) as connection:
            connection.execute("create table t (id integer, v text)")
        with transaction():
            postgres_source.connect().execute("insert into t values (1, 'a')")
            audit.connect().execute("insert into t values (1, 'a')")
        with pytest.raises(TransactionRolledBack), transaction() as tx:
            postgres_source.connect().execute("insert into t values (2, 'b')")
            audit.connect().execute("insert into t values (2, 'b')")
            tx.set_rollback_only()
        assert rows(postgres_source) == rows(audit) == [(1, "a")]


def test_a_connection_does_not_travel(sqlite_source: DataSource) -> None:
    connection = sqlite_source.connect()
    for travel in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="datasource"):
            travel(connection)
    connection.close()
    assert not hasattr(connection, "no_such_thing")


def test_a_closed_datasource(sqlite_source: DataSource) -> None:
    sqlite_source.close()
    with pytest.raises(PoolClosed):
        sqlite_source.connect()


def test_connect_finds_names_files_and_datasources(tmp_path: Path) -> None:
    path = tmp_path / "ledger.properties"
    path.write_text("driver = sqlite3\nmode = local\nurl = sqlite:///ledger.db\n")
    with DataSource.from_properties(path) as datasource:
        assert DataSource.from_properties(str(path)) is datasource
        targets: list[Any] = [path, str(path), f"txpool:{path}", datasource]
        with pytest.raises(ConfigurationError, match="neither a registered datasource"):
            connect("ledger")
        register(datasource)
        register(datasource)
        for target in [*targets, "ledger", "txpool:ledger"]:
            connection = connect(target)
            assert connection.datasource is datasource
            connection.close()
        other = DataSource(name="ledger", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/other.db")
        with other, pytest.raises(ConfigurationError, match="another datasource is registered as ledger"):
            register(other)
    with pytest.raises(ConfigurationError, match="neither a registered datasource"):
        connect("ledger")
    with DataSource.from_properties(path) as again:
        assert again is not datasource


def test_a_datasource_travels_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_PASSWORD", "s3cret-9")
    url = "postgresql://app@localhost/orders"
    with DataSource(name="orders", driver="psycopg", url=url, password="${env:ORDERS_PASSWORD}") as datasource:
        text = pickle.dumps(datasource)
        assert b"s3cret-9" not in text
        assert "s3cret-9" not in repr(datasource)
        with pickle.loads(text) as arrived:
            assert arrived.settings.connect_options() == datasource.settings.connect_options()
            assert pickle.loads(text) is arrived
        register(datasource)
        assert pickle.loads(text) is datasource
