"""Which connection a handle uses: in another thread, under another transaction, and taken before it or inside it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.integration.tm.demarcation.table import OneDatasource
from txpool.errors import Error, InterfaceError, ProgrammingError
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.calls import begin, commit, resume, suspend

# Blocks without work of their own
pytestmark = pytest.mark.filterwarnings("ignore::txpool.EmptyTransactionWarning")


def test_a_handle_closed_before_commit(world: OneDatasource) -> None:
    with transaction():
        first = world.datasource.connect()
        world.insert(first, 1)
        physical = first.holder().raw  # type: ignore[union-attr]
        first.close()
        assert world.datasource.statistics().taken == 1
        second = world.datasource.connect()
        assert second.holder().raw is physical  # type: ignore[union-attr]
        assert second.cursor().execute("select n from t").fetchall() == [(1,)]
        assert world.read() == []
    assert world.read() == [1]
    assert world.datasource.statistics().taken == 0


def test_another_thread_in_the_same_transaction(world: OneDatasource) -> None:
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


def test_where_another_transaction_is_ambient(world: OneDatasource) -> None:
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


def test_open_local_work_when_a_transaction_begins(world: OneDatasource) -> None:
    connection = world.datasource.connect()
    world.insert(connection, 1)
    with transaction():
        for use in (connection.cursor, lambda: connection.execute("insert into t values (2)")):
            with pytest.raises(ProgrammingError, match=r"open work of its own.*commit\(\) or rollback\(\) it first"):
                use()  # type: ignore[no-untyped-call]
        connection.commit()
        world.insert(connection, 3)
        assert world.read() == [1]
    assert world.read() == [1, 3]
    connection.close()


def test_with_is_left_while_enlisted(world: OneDatasource) -> None:
    with transaction():
        with world.datasource.connect() as connection:
            world.insert(connection, 1)
        with pytest.raises(Error, match="closed"):
            connection.cursor()
        with pytest.raises(ZeroDivisionError), world.datasource.connect() as connection:
            world.insert(connection, 2)
            raise ZeroDivisionError
        assert world.read() == []
    assert world.read() == [1, 2]


def test_taken_before_it_joins_on_its_next_use(world: OneDatasource) -> None:
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
            assert datasource.connect().holder() is connection.holder()
            assert cursor.arraysize == 7
            assert cursor.connection is connection
    assert world.read() == [10, 20]
    world.insert(connection, 30)
    assert world.read() == [10, 20]
    connection.commit()
    assert world.read() == [10, 20, 30]
    connection.close()
    assert datasource.statistics().idle == 1


def test_what_was_set_before_it_goes_with_the_handle(world: OneDatasource) -> None:
    def factory(cursor: Any, *_: Any) -> Any:
        return (lambda row: {"row": tuple(row)}) if world.datasource.driver == "psycopg" else {"row": tuple(_[0])}

    connection: Any = world.datasource.connect()
    connection.row_factory = factory
    with transaction():
        assert connection.execute("select 1").fetchone() == {"row": (1,)}
        assert world.datasource.connect().execute("select 1").fetchone() == (1,)
    assert connection.execute("select 1").fetchone() == {"row": (1,)}
    connection.close()


def test_a_result_of_before_is_gone_after_joining(world: OneDatasource) -> None:
    connection = world.datasource.connect()
    cursor = connection.cursor().execute("select 1")
    connection.commit()
    with transaction():
        world.insert(connection, 1)
        with pytest.raises(InterfaceError, match="execute again"):
            cursor.fetchone()
        assert cursor.execute("select n from t").fetchall() == [(1,)]
    connection.close()


def test_taken_inside_it_ends_with_it(world: OneDatasource) -> None:
    with transaction() as tx:
        connection = world.datasource.connect()
        cursor = connection.cursor().execute("select 1")
    assert connection.closed
    for use in (connection.cursor, connection.commit, lambda: cursor.execute("select 1")):
        with pytest.raises(Error, match=rf"{tx.gtrid}, which has ended \(committed\)"):
            use()
    with transaction(), pytest.raises(Error, match="has ended"):
        world.insert(connection, 1)
    connection.close()
    assert world.read() == []
