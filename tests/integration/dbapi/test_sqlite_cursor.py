"""A SQLite cursor's execute and fetches are the driver's own only for as long as that is right."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import txpool
from tests.support.forking import in_child
from txpool.datasource import DataSource
from txpool.tm.demarcation.block import transaction

FETCHES: dict[str, Callable[[Any], object]] = {
    "fetchone": lambda cursor: cursor.fetchone(),
    "fetchmany": lambda cursor: cursor.fetchmany(),
    "fetchmany of a size": lambda cursor: cursor.fetchmany(2),
    "fetchall": lambda cursor: cursor.fetchall(),
    "next": next,
    "iteration": list,
}
READ = "select id from t order by id"


@pytest.fixture
def filled(sqlite_source: DataSource) -> Iterator[DataSource]:
    with closing(sqlite_source.connect()) as connection:
        connection.executemany("insert into t values (?, 'x')", [(number,) for number in range(200)])
        connection.commit()
    yield sqlite_source
    assert sqlite_source.statistics().taken == 0


def opened(connection: Any) -> Any:
    """A cursor with a result that has been read in part; its statement has been executed before."""
    cursor = connection.cursor()
    cursor.execute(READ)
    cursor.execute(READ)
    cursor.fetchone()
    return cursor


def test_results_are_the_drivers(filled: DataSource) -> None:
    with closing(filled.connect()) as connection:
        cursor = connection.cursor()
        assert cursor.execute(READ) is cursor
        assert iter(cursor) is cursor
        assert [cursor.fetchone(), next(cursor), cursor.fetchmany(), cursor.fetchmany(2)] == [
            (0,),
            (1,),
            [(2,)],
            [(3,), (4,)],
        ]
        assert cursor.fetchmany(size=1) == [(5,)]
        cursor.arraysize = 3
        assert len(cursor.fetchmany()) == 3
        assert len(cursor.fetchall()) == 191
        assert cursor.fetchone() is None
        assert cursor.fetchall() == cursor.fetchmany() == list(cursor) == []
        with pytest.raises(StopIteration):
            next(cursor)
        cursor.row_factory = lambda _, row: f"row {row[0]}"
        assert next(cursor.execute(READ)) == "row 0"


@pytest.mark.parametrize("fetch", FETCHES)
def test_a_result_is_gone_once_its_connection_has_joined_or_left_a_transaction(filled: DataSource, fetch: str) -> None:
    with closing(filled.connect()) as connection:
        cursor, other = opened(connection), opened(connection)
        with transaction():
            connection.execute("update t set v = 'y'")
            with pytest.raises(txpool.InterfaceError, match="the result is gone"):
                FETCHES[fetch](cursor)
            assert cursor.execute(READ).fetchone() == (0,)
        with pytest.raises(txpool.InterfaceError, match="the result is gone"):
            FETCHES[fetch](cursor)
        assert other.execute(READ).fetchone() == (0,)


@pytest.mark.parametrize("fetch", FETCHES)
def test_none_after_close(filled: DataSource, fetch: str) -> None:
    connection = filled.connect()
    cursor = opened(connection)
    connection.close()
    with pytest.raises(txpool.Error, match="closed"):
        FETCHES[fetch](cursor)
    with pytest.raises(txpool.Error, match="closed"):
        cursor.execute(READ)


@pytest.mark.parametrize("fetch", FETCHES)
def test_a_closed_cursor_raises_the_drivers_error_and_ours(filled: DataSource, fetch: str) -> None:
    with closing(filled.connect()) as connection:
        cursor = opened(connection)
        cursor.close()
        for use in (FETCHES[fetch], lambda it: it.execute(READ)):
            with pytest.raises(sqlite3.ProgrammingError, match="Cannot operate on a closed cursor") as caught:
                use(cursor)
            assert isinstance(caught.value, txpool.ProgrammingError)


@pytest.mark.parametrize("enlisted", [False, True])
@pytest.mark.parametrize("fetch", FETCHES)
def test_a_fetch_that_fails_raises_the_drivers_error_and_ours(filled: DataSource, fetch: str, enlisted: bool) -> None:
    def work() -> None:
        with closing(filled.connect()) as connection:
            cursor = connection.cursor()
            for _ in range(2):
                # The first row is read by execute(), the others by the fetches.
                cursor.execute("select iif(id > 0, abs(-9223372036854775807 - id), id) from t order by id limit 3")
            with pytest.raises(sqlite3.OperationalError, match="integer overflow") as caught:
                for _ in range(3):
                    FETCHES[fetch](cursor)
            assert isinstance(caught.value, txpool.OperationalError)

    if enlisted:
        with transaction():
            work()
    else:
        work()


def test_a_statement_that_fails_raises_the_drivers_error_and_ours(filled: DataSource) -> None:
    with closing(filled.connect()) as connection:
        cursor = connection.cursor()
        for _ in range(2):
            with pytest.raises(sqlite3.IntegrityError) as caught:
                cursor.execute("insert into t values (?, ?)", (7, "twice"))
            assert isinstance(caught.value, txpool.IntegrityError)
        for wrong in (42, ["select 1"], None):
            with pytest.raises(TypeError):
                cursor.execute(wrong)


def test_a_statement_that_was_executed_before_joins_the_transaction(filled: DataSource) -> None:
    with closing(filled.connect()) as connection:
        cursor = connection.cursor()
        for number in (1, 2):
            cursor.execute("update t set v = 'plain' where id = ?", (number,))
        connection.commit()
        with pytest.raises(ZeroDivisionError), transaction():
            cursor.execute("update t set v = 'undone' where id = ?", (3,))
            raise ZeroDivisionError
        cursor.execute("update t set v = 'plain' where id = ?", (4,))
        connection.commit()
        assert cursor.execute("select id from t where v = 'plain'").fetchall() == [(1,), (2,), (4,)]


@pytest.mark.parametrize("required", ["strict", "warn"])
def test_a_datasource_that_demands_a_transaction_checks_each_statement(filled: DataSource, required: str) -> None:
    source = DataSource(name="s", driver="sqlite3", mode="local", url=filled.url, transaction_required=required)
    with source, closing(source.connect()) as connection:
        cursor = connection.cursor()
        for _ in range(3):
            if required == "strict":
                with pytest.raises(txpool.ProgrammingError, match="outside any transaction"):
                    cursor.execute(READ)
            else:
                with pytest.warns(txpool.OutsideTransactionWarning):
                    cursor.execute(READ)


def test_a_cursor_that_is_made_while_its_connection_closes_uses_nobody_elses(filled: DataSource) -> None:
    """As another thread's close() may come between: here the cursor's own class calls it."""
    filled.pool.resize(0, 1)
    connection = filled.connect()
    raws: list[Any] = []

    def make(raw: Any) -> sqlite3.Cursor:
        connection.close()
        raws.append(sqlite3.Cursor(raw))
        return raws[0]

    with pytest.raises(sqlite3.ProgrammingError, match="this connection is closed"):
        connection.cursor(make)
    with closing(filled.connect()) as other:
        other.execute("update t set v = 'y'")
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            raws[0].execute(READ)


def test_a_dump_ends_with_its_connection(filled: DataSource) -> None:
    filled.pool.resize(0, 1)
    connection: Any = filled.connect()
    dump, unread = connection.iterdump(), connection.iterdump()
    assert next(dump) == "BEGIN TRANSACTION;"
    assert "INSERT" in next(line for line in dump if "INSERT" in line)
    connection.close()
    with closing(filled.connect()) as other:
        other.execute("update t set v = 'of another'")
        for each in (dump, unread):
            with pytest.raises(sqlite3.ProgrammingError, match="this connection is closed"):
                next(each)
        other.execute("drop table t")  # refused while a statement reads it
        other.rollback()


def test_a_dump_inside_a_transaction_is_of_that(filled: DataSource) -> None:
    outside: Any = filled.connect()
    dump = outside.iterdump()
    assert next(dump) == "BEGIN TRANSACTION;"
    with transaction():
        inside: Any = filled.connect()
        inside.execute("update t set v = 'new'")
        assert sum("'new'" in line for line in inside.iterdump()) == 200
        outside.execute("select 1")
        with pytest.raises(txpool.InterfaceError, match="has joined a transaction"):
            next(dump)
    outside.close()


def test_a_forked_child_reads_nothing_by_the_parents_cursor(filled: DataSource) -> None:
    with closing(filled.connect()) as connection:
        cursor = opened(connection)

        def child() -> None:
            for use in (*FETCHES.values(), lambda it: it.execute(READ), lambda it: connection.execute(READ)):
                with pytest.raises(txpool.InterfaceError, match="is the parent process's"):
                    use(cursor)

        in_child(child)
        assert cursor.fetchone() == (1,)


def test_threads_share_an_enlisted_connection(filled: DataSource) -> None:
    with transaction():
        connection = filled.connect()
        counted: list[int] = []

        def work() -> None:
            cursor = connection.cursor()
            for number in range(100):
                cursor.execute("update t set v = v || 'z' where id = ?", (number,))
                counted.append(cursor.execute("select count(*) from t").fetchone()[0])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counted == [200] * 400
        assert connection.execute("select v from t where id = 1").fetchone() == ("xzzzz",)
        connection.close()


def test_a_cursor_of_the_users_own_class(filled: DataSource) -> None:
    class Own(sqlite3.Cursor):
        """It has an attribute of its own."""

        colour = "blue"

    with closing(filled.connect()) as connection:
        cursor: Any = connection.cursor(Own)
        assert isinstance(cursor, Own)
        assert cursor.colour == "blue"
        assert cursor.execute(READ).fetchone() == (0,)
