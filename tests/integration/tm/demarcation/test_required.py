"""transaction.required: statements outside any transaction, which no rollback of one would undo."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.tm.demarcation.outside import plain, refused
from tests.integration.tm.demarcation.table import OneDatasource
from txpool.datasource import DataSource
from txpool.errors import OutsideTransactionWarning, ProgrammingError
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.calls import begin, commit, resume, rollback, suspend
from txpool.tm.demarcation.transactional import transactional

on_postgresql = pytest.mark.parametrize("world", ["psycopg"], indirect=True)
on_sqlite = pytest.mark.parametrize("world", ["sqlite3"], indirect=True)


@pytest.fixture
def warned(world: OneDatasource) -> DataSource:
    return world.open(transaction_required="warn")


def test_a_thread_that_only_executes(world: OneDatasource, strict: DataSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller is above the handle."""
    heard: list[object] = []
    done = threading.Event()

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        heard.append(unraisable.exc_value)
        done.set()

    monkeypatch.setattr(sys, "unraisablehook", hook)
    with plain(strict) as connection:
        _thread.start_new_thread(connection.cursor().execute, ("insert into t values (1)",))
        done.wait(60)
    assert isinstance(heard[0], ProgrammingError)
    assert world.read() == []


def test_it_is_off_by_default(world: OneDatasource) -> None:
    with plain(world.datasource) as connection:
        world.insert(connection, 1)
        connection.commit()
    assert world.read() == [1]


def test_threads_of_a_block_are_in_no_transaction(world: OneDatasource, strict: DataSource) -> None:
    """Without it five rows stay, whatever becomes of the transaction."""

    def work(number: int) -> None:
        with plain(strict) as connection:
            world.insert(connection, number)
            connection.commit()

    with refused, transaction():
        world.insert(strict.connect(), 7)
        with ThreadPoolExecutor(5) as pool:
            list(pool.map(work, range(5)))
    assert world.read() == []
    assert strict.statistics().taken == 0


def test_threads_that_are_given_the_connection_or_the_transaction(world: OneDatasource, strict: DataSource) -> None:
    with transaction() as tx:
        connection = strict.connect()

        def resumed() -> None:
            resume(tx)
            world.insert(strict.connect(), 2)

        def copied() -> None:
            world.insert(strict.connect(), 3)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(world.insert, connection, 1).result()
            pool.submit(contextvars.Context().run, resumed).result()
            pool.submit(contextvars.copy_context().run, copied).result()
    assert world.read() == [1, 2, 3]


def test_a_forgotten_decorator(world: OneDatasource, strict: DataSource) -> None:
    def forgotten() -> None:
        with plain(strict) as connection:
            world.insert(connection, 1)
            connection.commit()

    with refused:
        forgotten()
    assert world.read() == []


def test_to_connect_is_no_work(strict: DataSource) -> None:
    with plain(strict) as connection:
        cursor = connection.cursor()
        connection.rollback()
        connection.commit()
        cursor.close()


def test_after_a_block_its_connection_is_outside(world: OneDatasource, strict: DataSource) -> None:
    with plain(strict) as connection:
        with transaction():
            world.insert(connection, 1)
        with refused:
            world.insert(connection, 2)
        with transaction():
            world.insert(connection, 3)
    assert world.read() == [1, 3]


@pytest.mark.parametrize("propagation", ["not_supported", "never"])
def test_what_is_declared_outside_may_work_there(world: OneDatasource, strict: DataSource, propagation: Any) -> None:
    def insert_outside(number: int) -> None:
        with plain(strict) as connection:
            world.insert(connection, number)
            connection.commit()

    @transactional(propagation)
    def declared() -> None:
        insert_outside(1)
        with transaction():
            world.insert(strict.connect(), 2)
        begin()
        world.insert(strict.connect(), 3)
        commit()
        insert_outside(4)
        with ThreadPoolExecutor(1) as pool, refused:
            pool.submit(insert_outside, 5).result()

    declared()
    with refused:
        insert_outside(6)
    assert world.read() == [1, 2, 3, 4]


@on_postgresql
def test_within_a_transaction_not_supported_is_outside(world: OneDatasource, strict: DataSource) -> None:
    @transactional("not_supported")
    def log() -> None:
        with plain(strict) as connection:
            world.insert(connection, 1)
            connection.commit()

    with pytest.raises(ZeroDivisionError), transaction():
        world.insert(strict.connect(), 2)
        log()
        raise ZeroDivisionError
    assert world.read() == [1]


def test_supports_declares_nothing(world: OneDatasource, strict: DataSource) -> None:
    @transactional("supports")
    def work() -> None:
        world.insert(strict.connect(), 1)

    with transaction():
        work()

    def outside() -> None:
        with plain(strict) as connection:
            world.insert(connection, 2)

    with refused:
        transactional("supports")(outside)()
    assert world.read() == [1]


@on_postgresql
def test_what_is_suspended_may_be_worked_beside(world: OneDatasource, strict: DataSource) -> None:
    def insert_outside(number: int) -> None:
        with plain(strict) as connection:
            world.insert(connection, number)
            connection.commit()

    suspend()
    with refused:
        insert_outside(0)
    begin()
    tx = suspend()
    insert_outside(1)
    resume(tx)
    rollback()
    with refused:
        insert_outside(2)
    # One that has ended elsewhere is not suspended any more.
    begin()
    tx = suspend()
    assert tx is not None
    insert_outside(3)
    thread = threading.Thread(target=tx.commit)
    thread.start()
    thread.join()
    with refused:
        insert_outside(4)
    assert world.read() == [1, 3]


def test_a_warning_names_the_line_once(world: OneDatasource, warned: DataSource) -> None:
    def work(number: int) -> None:
        with plain(warned) as connection:
            connection.cursor().execute(f"insert into t values ({number})")  # this line
            connection.commit()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for number in range(3):
            work(number)
        with transaction():
            world.insert(warned.connect(), 3)
    (warning,) = caught
    assert warning.category is OutsideTransactionWarning
    assert str(warning.message).startswith("datasource one: a statement outside any transaction")
    assert warning.filename == __file__
    with open(__file__, encoding="utf-8") as source:
        assert "# this line" in source.readlines()[warning.lineno - 1]
    assert world.read() == [0, 1, 2, 3]


@on_postgresql
def test_a_warning_names_the_line_beyond_what_executes_for_it(warned: DataSource) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from txpool.engine import create_engine

    with warnings.catch_warnings(record=True) as caught, plain(warned) as connection:
        warnings.simplefilter("always")
        with connection.cursor().copy("copy t from stdin") as copy:
            copy.write_row([1])
        list(connection.cursor().stream("select n from t"))
        engine = create_engine(warned)
        with engine.connect() as other:
            other.execute(sqlalchemy.text("select n from t"))
        engine.dispose()
    assert len(caught) >= 3
    assert {(warning.filename, warning.category) for warning in caught} == {(__file__, OutsideTransactionWarning)}


def test_a_warning_that_is_an_error_has_done_nothing(world: OneDatasource, warned: DataSource) -> None:
    with plain(warned) as connection, pytest.raises(OutsideTransactionWarning):
        world.insert(connection, 1)
    assert world.read() == []


def test_tasks_inherit_what_their_creator_was_in(world: OneDatasource, strict: DataSource) -> None:
    async def work(number: int) -> None:
        await asyncio.sleep(0)
        world.insert(strict.connect(), number)

    async def main() -> None:
        with transaction():
            await asyncio.create_task(work(1))
        with refused:
            await asyncio.create_task(outside(2))

    async def outside(number: int) -> None:
        await asyncio.sleep(0)
        with plain(strict) as connection:
            world.insert(connection, number)

    asyncio.run(main())
    assert world.read() == [1]


def test_recovery_and_the_pool_are_not_concerned(world: OneDatasource) -> None:
    datasource = world.open(transaction_required="strict", pool_check_bypass=0)
    for number in (1, 2):
        with transaction():
            world.insert(datasource.connect(), number)
    with plain(datasource), plain(datasource):
        pass
    datasource.pool.check()
    if datasource.mode == "xa":
        assert datasource.branch_recovery().recover() == []
    else:
        assert datasource.xids_table().read() == []
    assert world.read() == [1, 2]
