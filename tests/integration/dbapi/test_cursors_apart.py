"""The cursors of one physical connection see nothing of each other, nor of those of the transaction before."""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.adapt import Loader
from psycopg.rows import dict_row, namedtuple_row

from txpool.datasource import DataSource
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


class Shouting(Loader):
    def load(self, data: Any) -> str:
        return bytes(data).decode().upper()


def write(connection: Any, number: int) -> None:
    """A statement whose cursor is gone at once."""
    connection.execute("insert into t values (%s, 'v')", [number])


def test_row_factory_set_after_a_write(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        write(connection, 1)
        connection.row_factory = dict_row
        assert connection.execute("select id from t").fetchone() == {"id": 1}
        assert connection.cursor().execute("select id from t").fetchone() == {"id": 1}


def test_row_factory_of_another_handle(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as mine, postgres_source.connect() as other:
        mine.row_factory = dict_row
        write(mine, 1)
        write(mine, 2)
        write(other, 3)
        cursor = mine.cursor()
        cursor.execute("insert into t values (4)")
        del cursor
        assert other.execute("select id from t").fetchone() == (1,)
        assert mine.execute("select id from t").fetchone() == {"id": 1}


def test_row_factory_of_the_transaction_before(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        connection.row_factory = dict_row
        connection.cursor().execute("insert into t values (1)")
    with transaction(), postgres_source.connect() as connection:
        assert connection.cursor().execute("select id from t").fetchone() == (1,)


def test_a_cursor_that_has_joined_the_transaction(postgres_source: DataSource) -> None:
    with postgres_source.connect() as connection:
        cursor = connection.cursor(row_factory=dict_row)
        plain = connection.cursor()
        plain.row_factory = dict_row
        plain.arraysize = 7
        with transaction():
            plain.execute("insert into t values (1, 'v')")
            del plain
            with postgres_source.connect() as other:
                assert other.cursor().arraysize == 1
                assert other.cursor().execute("select id from t").fetchone() == (1,)
            assert cursor.execute("select id from t").fetchone() == {"id": 1}


def test_adapters_set_after_a_write(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        write(connection, 1)
        connection.adapters.register_loader("text", Shouting)
        assert connection.execute("select v from t").fetchone() == ("V",)


def test_adapters_of_another_handle(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as mine, postgres_source.connect() as other:
        mine.adapters.register_loader("text", Shouting)
        mine.cursor().execute("insert into t values (1, 'v')")
        assert other.cursor().execute("select v from t").fetchone() == ("v",)
    with transaction(), postgres_source.connect() as connection:
        assert connection.cursor().execute("select v from t").fetchone() == ("v",)


def test_in_a_pipeline(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        write(connection, 1)
        with connection.pipeline():
            connection.execute("select 'first'")
            second = connection.cursor()
            second.execute("select 'second'")
            assert second.fetchall() == [("second",)]
            assert second.nextset() is None
            connection.execute("insert into t values (7)")
            connection.execute("insert into t select * from generate_series(8, 9)")
            third = connection.cursor()
            third.execute("select 'third'")
            fourth = connection.execute("select 'fourth'")
        assert third.fetchall() == [("third",)]
        assert fourth.fetchall() == [("fourth",)]
        assert connection.execute("select count(*) from t").fetchone() == (4,)


def test_a_statement_in_a_pipeline_whose_cursor_is_gone(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        write(connection, 1)
        with connection.pipeline():
            for _ in range(50):
                connection.execute("select repeat('x', 20000)")
            second = connection.cursor()
            second.execute("select 'second'")
            time.sleep(0.2)
            second.connection.execute("select 'third'")
            assert second.fetchall() == [("second",)]


def test_a_cursor_of_before_the_pipeline(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        first = connection.cursor()
        with connection.pipeline():
            first.execute("select 'first'")
            del first
            assert connection.execute("select 'second'").fetchall() == [("second",)]
        assert connection.execute("select 'third'").fetchall() == [("third",)]


def test_nothing_of_the_one_before_is_seen(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        write(connection, 1)
        cursor = connection.cursor()
        assert cursor.rowcount == -1
        assert "no result" in repr(cursor)
        assert not list(cursor.results())
        with pytest.raises(psycopg.ProgrammingError, match="no result available"):
            cursor.fetchone()


def test_nothing_is_left_of_a_stream(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        write(connection, 1)
        cursor = connection.cursor()
        for _ in cursor.stream("select 'streamed' from generate_series(1, 3)"):
            pass
        del cursor
        cursor = connection.cursor()
        assert (cursor.rowcount, cursor.description) == (-1, None)
        with pytest.raises(psycopg.ProgrammingError):
            cursor.fetchone()


def test_the_encoding_of_now(postgres_source: DataSource, databases: Databases) -> None:
    insert = "insert into t values (%s, %s)"
    with transaction(), postgres_source.connect() as connection:
        other = connection.cursor()
        connection.execute(insert, [1, "\u00e9"])
        other.execute("insert into t values (2, set_config('client_encoding', 'latin1', true))")
        connection.execute(insert, [3, "\u00e9"])
    assert databases.rows("one", "select v from t where id <> 2") == [("\u00e9",), ("\u00e9",)]


class Cycle:
    def __init__(self, cursor: Any, kept: list[Any]) -> None:
        self.cursor, self.me, self.kept = cursor, self, kept

    def __del__(self) -> None:
        self.kept.append(self.cursor)


def test_a_cursor_that_a_finaliser_revives(postgres_source: DataSource) -> None:
    kept: list[Any] = []
    with transaction(), postgres_source.connect() as connection:
        cursor = connection.cursor()
        cursor.execute("insert into t values (1, 'v')")
        Cycle(cursor, kept)
        del cursor
        gc.collect()
        (revived,) = kept
        another = connection.cursor()
        another.execute("insert into t select n, 'v' from generate_series(2, 4) n")
        revived.execute("select 'revived'")
        assert another.rowcount == 3
        another.execute("select 'another'")
        assert revived.fetchall() == [("revived",)]


def test_a_generator_in_a_cycle(postgres_source: DataSource) -> None:
    seen: list[Any] = []

    def writing(connection: Any, keep: list[Any]) -> Any:
        cursor = connection.cursor()
        cursor.execute("insert into t values (1, 'v')")
        try:
            yield
        finally:
            other = connection.cursor()
            other.execute("insert into t select n, 'v' from generate_series(2, 4) n")
            seen.append(cursor.rowcount)

    with transaction(), postgres_source.connect() as connection:
        keep: list[Any] = []
        generator = writing(connection, keep)
        next(generator)
        keep.append(generator)
        del keep, generator
        gc.collect()
        assert seen == [1]


def test_an_idle_connection_keeps_no_large_parameters(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        pid = connection.info.backend_pid
    tracemalloc.start()
    try:
        with transaction(), postgres_source.connect() as connection:
            connection.execute("insert into t values (1, %s)", ["v" * 5_000_000])
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    with postgres_source.connect() as connection:
        assert connection.info.backend_pid == pid


def test_format_and_arraysize(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        cursor = connection.cursor()
        cursor.arraysize = 7
        cursor.execute("insert into t values (1, 'v')")
        del cursor
        assert connection.cursor().arraysize == 1
        cursor = connection.cursor()
        cursor.row_factory = namedtuple_row
        cursor.execute("insert into t values (2, 'v')")
        del cursor
        assert type(connection.execute("select id from t").fetchone()) is tuple
        cursor = connection.cursor()
        cursor.execute("insert into t values (3, 'v')")
        cursor.close()
        del cursor
        assert connection.execute("select id from t where id = 3").fetchone() == (3,)
