"""psycopg's own ways: what passes for its connection, and does what that does, plain or enlisted."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types import TypeInfo
from psycopg.types.numeric import IntLoader

from tests.integration.dbapi.table import rows
from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.tm.demarcation.block import transaction


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
        connection: Any = postgres_source.connect()
        info = TypeInfo.fetch(connection, "text")  # by a block and a raw cursor of its own, first of all
        assert info is not None
        with psycopg.Cursor(connection) as cursor:
            cursor.execute("insert into t values (1, 'kept')")
        assert TypeInfo.fetch(connection, "no_such_type") is None
        connection.execute("insert into t values (2, 'kept')")
    assert rows(postgres_source) == [(1, "kept"), (2, "kept")]
    with pytest.raises(ZeroDivisionError), transaction():
        psycopg.Cursor(postgres_source.connect()).execute("insert into t values (3, 'lost')")  # type: ignore[call-overload]
        raise ZeroDivisionError
    assert rows(postgres_source) == [(1, "kept"), (2, "kept")]


def test_isolation_is_chosen_before_the_first_statement(postgres_source: DataSource) -> None:
    connection: Any = postgres_source.connect()
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    for _ in range(2):
        with transaction():
            assert connection.execute("show transaction_isolation").fetchone() == ("serializable",)
            other: Any = postgres_source.connect()
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
    def assert_row_factories() -> None:
        connection, other = postgres_source.connect(), postgres_source.connect()
        connection.row_factory = dict_row  # type: ignore[attr-defined]
        assert connection.row_factory is dict_row
        assert connection.execute("select 1 as a").fetchone() == {"a": 1}
        assert other.execute("select 1 as a").fetchone() == (1,)
        assert other.cursor(row_factory=dict_row).execute("select 1 as a").fetchone() == {"a": 1}
        assert connection.execute("select 2 as a").fetchone() == {"a": 2}
        connection.close()
        other.close()

    if enlisted:
        with transaction():
            assert_row_factories()
    else:
        assert_row_factories()
    with postgres_source.connect() as first, postgres_source.connect() as second:
        assert first.execute("select 1").fetchone() == second.execute("select 1").fetchone() == (1,)


def test_what_was_set_on_a_connection_is_taken_back(postgres_source: DataSource) -> None:
    postgres_source.pool.resize(0, 1)
    heard: list[str] = []

    class Loud(IntLoader):
        def load(self, data: Any) -> Any:
            return f"{super().load(data)}!"

    connection: Any = postgres_source.connect()
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
