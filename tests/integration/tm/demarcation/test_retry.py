"""transactional(attempts=…): what databases refuse for a conflict, and whether it lands once the conflict is over."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.integration.tm.demarcation.table import OneDatasource
from txpool import Status, TransactionInDoubt, TransactionRolledBack, failpoints
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.transactional import transactional
from txpool.tm.transaction import Transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

on_postgresql = pytest.mark.parametrize("world", ["psycopg"], indirect=True)
on_sqlite = pytest.mark.parametrize("world", ["sqlite3"], indirect=True)


@pytest.fixture
def seen() -> list[Transaction]:
    """Every transaction in which the test's function has worked."""
    return []


@pytest.fixture
def note(seen: list[Transaction]) -> Callable[[], int]:
    def note() -> int:
        tx = current()
        assert tx is not None
        seen.append(tx)
        return len(seen)

    return note


def skew(cursor: Any, number: int) -> None:
    """What two cannot both do at the same time."""
    cursor.execute("set transaction isolation level serializable")
    cursor.execute("select count(*) from t").fetchall()
    cursor.execute("insert into t values (%s)", [number])


def ends(seen: list[Transaction]) -> list[Status]:
    return [tx.status for tx in seen]


@on_postgresql
def test_a_statement_that_cannot_be_serialized(
    world: OneDatasource, seen: list[Transaction], note: Callable[[], int]
) -> None:
    with closing(world.bare()) as other:
        other.execute("insert into t values (1)")

        @transactional(attempts=2)
        def work() -> None:
            attempt = note()
            cursor = world.datasource.connect().cursor()
            cursor.execute("set transaction isolation level repeatable read")
            cursor.execute("select n from t").fetchall()
            if attempt == 1:
                other.execute("update t set n = n + 1")
            cursor.execute("update t set n = n + 10")

        work()
    assert world.read() == [12]
    assert ends(seen) == [Status.ROLLED_BACK, Status.COMMITTED]


@on_postgresql
@pytest.mark.parametrize("branches", [1, 2])
def test_a_commit_or_a_prepare_that_cannot_be_serialized(
    world: OneDatasource, databases: Databases, branches: int, seen: list[Transaction], note: Callable[[], int]
) -> None:
    databases.execute("two", "create table t (n integer primary key)")
    second = world.open(name="two", url=databases.url("two"))

    @transactional(attempts=2)
    def work() -> None:
        attempt = note()
        skew(world.datasource.connect().cursor(), attempt)
        if branches == 2:
            second.connect().cursor().execute("insert into t values (7)")
        if attempt == 1:
            with psycopg.connect(databases.dsn("one")) as other:
                skew(other.cursor(), 5)

    work()
    assert world.read() == [2, 5]
    assert databases.rows("two", "select n from t") == ([(7,)] if branches == 2 else [])
    assert databases.prepared() == []
    assert ends(seen) == [Status.ROLLED_BACK, Status.COMMITTED]


@on_postgresql
def test_a_deadlock(
    world: OneDatasource, databases: Databases, seen: list[Transaction], note: Callable[[], int]
) -> None:
    with closing(world.bare()) as other:
        other.execute("insert into t values (1), (20)")
    first, theirs = threading.Event(), threading.Event()

    def meet() -> None:
        with psycopg.connect(databases.dsn("one")) as other:
            other.execute("set deadlock_timeout = '1h'")  # it is never this one that gives up
            first.wait(60)
            other.execute("update t set n = n + 1 where n between 20 and 29")
            theirs.set()
            other.execute("update t set n = n + 1 where n between 1 and 9")

    @transactional(attempts=2)
    def work() -> None:
        attempt = note()
        if attempt == 2:
            thread.join(60)  # else it may take the row before who has waited for it: another deadlock
        cursor = world.datasource.connect().cursor()
        cursor.execute("update t set n = n + 2 where n between 1 and 9")
        if attempt == 1:
            first.set()
            theirs.wait(60)
        cursor.execute("update t set n = n + 2 where n between 20 and 29")

    thread = threading.Thread(target=meet)
    thread.start()
    work()
    thread.join()
    assert world.read() == [4, 23]
    assert ends(seen) == [Status.ROLLED_BACK, Status.COMMITTED]


@on_postgresql
def test_no_slot_to_prepare_in(
    world: OneDatasource, databases: Databases, seen: list[Transaction], note: Callable[[], int]
) -> None:
    databases.execute("two", "create table t (n integer primary key)")
    second = world.open(name="two", url=databases.url("two"))
    with closing(world.bare()) as other:
        slots = int(other.execute("show max_prepared_transactions").fetchone()[0])
        for number in range(slots):
            other.execute(f"begin; select pg_current_xact_id(); prepare transaction 'full {number}'")

        @transactional(attempts=2)
        def work() -> None:
            if note() == 2:
                for number in range(slots):
                    other.execute(f"rollback prepared 'full {number}'")
            for datasource in (world.datasource, second):
                datasource.connect().cursor().execute("insert into t values (1)")

        work()
    assert world.read() == [1]
    assert databases.rows("two", "select n from t") == [(1,)]
    assert databases.prepared() == []
    assert ends(seen) == [Status.ROLLED_BACK, Status.COMMITTED]


@on_postgresql
def test_a_database_that_has_not_answered(
    world: OneDatasource, databases: Databases, seen: list[Transaction], note: Callable[[], int]
) -> None:
    """Its branch is prepared and holds its locks until recovery comes: another attempt would wait for them."""
    databases.execute("two", "create table t (n integer primary key)")
    second = world.open(name="two", url=databases.url("two"))

    def cut() -> None:
        databases.execute("one", "alter database two with allow_connections false")
        databases.execute("one", "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = 'two'")

    @transactional(attempts=2)
    def work() -> None:
        note()
        skew(world.datasource.connect().cursor(), 1)
        second.connect().cursor().execute("insert into t values (7)")
        with psycopg.connect(databases.dsn("one")) as other:
            skew(other.cursor(), 5)

    try:
        with (
            failpoints.arming("coordinator.preparing", cut),
            pytest.raises(TransactionRolledBack, match="recovery will finish two"),
        ):
            work()
    finally:
        databases.execute("one", "alter database two with allow_connections true")
    assert len(seen) == 1
    assert world.read() == [5]


@on_sqlite
def test_a_file_that_is_busy(world: OneDatasource, seen: list[Transaction], note: Callable[[], int]) -> None:
    datasource = world.open(driver_timeout=0.01)
    with closing(world.bare()) as other:
        other.execute("begin immediate")

        @transactional(attempts=2)
        def work() -> None:
            if note() == 2:
                other.execute("rollback")
            world.insert(datasource.connect(), 1)

        work()
    assert world.read() == [1]
    assert ends(seen) == [Status.ROLLED_BACK, Status.COMMITTED]


@on_sqlite
def test_a_file_that_is_busy_with_readers_at_the_commit(
    world: OneDatasource, seen: list[Transaction], note: Callable[[], int]
) -> None:
    """Without WAL a writer waits for readers when it commits."""
    datasource = world.open(driver_timeout=0.01)
    with closing(world.bare()) as other:
        other.execute("insert into t values (5), (6)")
        reading = other.execute("select n from t")
        reading.fetchone()

        @transactional(attempts=2)
        def work() -> None:
            if note() == 2:
                reading.close()
            world.insert(datasource.connect(), 1)

        work()
    assert world.read() == [1, 5, 6]
    assert ends(seen) == [Status.ROLLED_BACK, Status.COMMITTED]


@on_sqlite
def test_it_stays_busy(world: OneDatasource, seen: list[Transaction], note: Callable[[], int]) -> None:
    datasource = world.open(driver_timeout=0.01)
    with closing(world.bare()) as other:
        other.execute("begin immediate")

        @transactional(attempts=3)
        def work() -> None:
            note()
            world.insert(datasource.connect(), 1)

        with pytest.raises(sqlite3.OperationalError, match="locked") as raised:
            work()
    assert "was attempted 3 times" in "".join(raised.value.__notes__)
    assert ends(seen) == [Status.ROLLED_BACK] * 3
    assert datasource.statistics().taken == 0


@on_postgresql
@pytest.mark.parametrize("branches", [1, 2])
def test_a_session_that_the_server_has_ended_is_not_attempted_again(
    world: OneDatasource, databases: Databases, branches: int, seen: list[Transaction], note: Callable[[], int]
) -> None:
    """Nobody asks whether it is alive.

    The error does not say whose session it was: one outside the transaction may have committed.
    """
    databases.execute("two", "create table t (n integer primary key)")
    first = world.open(name="first", pool_check_bypass="1h")
    second = world.open(name="two", url=databases.url("two"))

    def end_its_session() -> None:
        with transaction():
            (pid,) = first.connect().cursor().execute("select pg_backend_pid()").fetchone()
        databases.rows("two", "select pg_terminate_backend(%s, 5000)", [pid])

    @transactional(attempts=2)
    def work() -> None:
        attempt = note()
        if branches == 2:
            second.connect().cursor().execute("insert into t values (%s)", [attempt])
        first.connect().cursor().execute("insert into t values (%s)", [attempt])

    end_its_session()
    with pytest.raises(psycopg.errors.AdminShutdown):
        work()
    assert world.read() == []
    work()
    assert world.read() == [2]
    assert databases.rows("two", "select n from t") == ([(2,)] if branches == 2 else [])
    assert databases.prepared() == []
    assert ends(seen) == [Status.ROLLED_BACK, Status.COMMITTED]


@on_postgresql
def test_a_commit_whose_session_the_server_has_ended_is_in_doubt_and_not_attempted_again(
    world: OneDatasource, databases: Databases, seen: list[Transaction], note: Callable[[], int]
) -> None:
    databases.execute(
        "one",
        "create function kill() returns trigger language plpgsql as "
        "$$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$; "
        "create constraint trigger kill after insert on t deferrable initially deferred for each row "
        "execute function kill()",
    )

    @transactional(attempts=3)
    def work() -> None:
        world.datasource.connect().cursor().execute("insert into t values (%s)", [note()])

    with pytest.raises(TransactionInDoubt):
        work()
    assert ends(seen) == [Status.IN_DOUBT]
