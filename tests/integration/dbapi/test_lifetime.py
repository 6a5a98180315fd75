"""A handle, a cursor or a block that outlives another, is dropped, or is lost."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.integration.dbapi.table import rows
from txpool import failpoints
from txpool.datasource import DataSource
from txpool.errors import InterfaceError, OperationalError, TransactionRolledBack
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


def test_the_connection_of_a_cursor_is_the_handle(postgres_source: DataSource) -> None:
    with postgres_source.connect() as connection:
        assert connection.cursor().connection is connection
        assert connection.execute("select 1").connection is connection
        assert connection.connection is connection


def test_a_block_that_outlives_its_connection_disturbs_nobody(
    postgres_source: DataSource, caplog: pytest.LogCaptureFixture
) -> None:
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
        block.__exit__(None, None, None)  # as psycopg has it
        assert "has outlived its connection" in caplog.text
        with other.transaction():
            other.execute("insert into t values (3, 'kept')")
    assert rows(postgres_source) == [(2, "kept"), (3, "kept")]


def test_a_block_says_where_it_has_not_committed(postgres_source: DataSource) -> None:
    """The user's own COMMIT in it let the connection join a transaction, after which the same session came back."""
    postgres_source.pool.resize(0, 1)
    with postgres_source.connect() as connection:
        with (
            pytest.raises(InterfaceError, match="the block has committed nothing"),
            connection.transaction(),
        ):
            connection.execute("insert into t values (1, 'by the COMMIT')")
            connection.execute("commit")
            with transaction():
                connection.execute("insert into t values (2, 'by the transaction')")
            connection.execute("insert into t values (3, 'open')")
        connection.rollback()
        connection.execute("insert into t values (4, 'kept')")
    assert [number for number, _ in rows(postgres_source)] == [1, 2, 4]


@pytest.mark.parametrize("enlisted", [False, True])
def test_a_cancel_that_comes_late_reaches_nobody_else(postgres_source: DataSource, *, enlisted: bool) -> None:
    """Of a statement that ends by itself just when another thread cancels it."""
    postgres_source.pool.resize(0, 1)

    def cancel(connection: Any, begun: threading.Event) -> None:
        begun.set()
        with suppress(psycopg.Error):
            connection.cancel_safe()

    for _ in range(30):
        begun = threading.Event()
        with (
            suppress(psycopg.errors.QueryCanceled, OperationalError, TransactionRolledBack),
            transaction() if enlisted else nullcontext(),
            postgres_source.connect() as connection,
        ):
            late = threading.Thread(target=cancel, args=(connection, begun))
            late.start()
            begun.wait()
            connection.execute("select 1")
        with postgres_source.connect() as other:
            other.execute("select pg_sleep(0.02)")
        late.join()


def test_a_connection_that_is_closed_within_a_copy_is_dropped_at_once(
    postgres_source: DataSource, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where all rows have come: psycopg keeps the connection locked until the block's end."""
    postgres_source.pool.resize(0, 1)
    connection: Any = postgres_source.connect()
    with connection.cursor().copy("copy (select 1) to stdout") as copy:
        assert list(copy.rows()) == [("1",)]
        connection.close()
        with postgres_source.connect() as other:
            assert other.execute("select 1").fetchone() == (1,)
    assert "was left while it executed" in caplog.text


def test_a_result_outlives_the_last_name_of_its_connection(postgres_source: DataSource) -> None:
    cursor = postgres_source.connect().execute("select generate_series(1, 3)")
    gc.collect()
    assert cursor.fetchall() == [(1,), (2,), (3,)]
    cursor.connection.close()


@pytest.mark.parametrize("driver", ["postgres_source", "sqlite_source"])
def test_a_result_is_gone_after_a_transaction_though_the_same_connection_comes_back(
    request: pytest.FixtureRequest, driver: str
) -> None:
    source: DataSource = request.getfixturevalue(driver)
    source.pool.resize(0, 1)
    connection = source.connect()
    cursor = connection.execute("select 1")
    connection.commit()
    with transaction():
        connection.execute("select 2")
    connection.execute("select 3")
    with pytest.raises(InterfaceError, match="the result is gone"):
        cursor.fetchone()
    assert cursor.execute("select 4").fetchone() == (4,)
    connection.close()


def test_a_dropped_connection_warns_and_its_place_is_free_again(postgres_source: DataSource) -> None:
    postgres_source.pool.resize(0, 1)
    with pytest.warns(ResourceWarning, match=r"connection to one, plain.*> was not closed"):
        postgres_source.connect().execute("select 1").fetchone()
        gc.collect()
    with postgres_source.connect(timeout=20) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_block_around_the_end_of_its_transaction(postgres_source: DataSource) -> None:
    postgres_source.pool.resize(0, 1)
    with transaction() as tx:
        block = postgres_source.connect().transaction()
        block.__enter__().connection.execute("insert into t values (1, 'kept')")
    assert tx.ended
    with pytest.raises(psycopg.OperationalError, match=rf"outlived {tx.gtrid} around it \(committed\)") as caught:
        block.__exit__(None, None, None)
    assert isinstance(caught.value, OperationalError)
    with postgres_source.connect() as connection, connection.transaction():
        connection.execute("insert into t values (2, 'kept')")
    assert rows(postgres_source) == [(1, "kept"), (2, "kept")]


def where(thread: threading.Thread) -> str:
    """The files of the thread's frames."""
    frame = sys._current_frames().get(thread.ident or 0)
    files = []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return " ".join(files)


def call_noting_errors(call: Callable[[], object], told: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:
        told.append(error)


@pytest.mark.parametrize("left", ["block", "cursor"])
def test_what_a_thread_leaves_while_the_transaction_ends_does_not_reach_the_next_one(
    postgres_source: DataSource, databases: Databases, left: str
) -> None:
    postgres_source.pool.resize(0, 1)
    told: list[BaseException] = []

    with transaction() as tx:
        connection = postgres_source.connect()
        pid, lock = connection.info.backend_pid, connection.enlistment.lock
        if left == "block":
            block = connection.transaction()
            block.__enter__()
            end = partial(block.__exit__, None, None, None)
        else:
            end = connection.cursor("named").execute("select generate_series(1, 9)").close
        thread = threading.Thread(target=call_noting_errors, args=(end, told))
        lock.acquire()
        thread.start()
        while "txpool/resources" not in where(thread):  # it waits for the lock: on 3.14 in a function of the lock's own
            time.sleep(0.001)
    with transaction():
        with postgres_source.connect() as other:
            other.execute("insert into t values (1, 'kept')")
        lock.release()
        thread.join()
        ((last,),) = databases.rows("two", "select query from pg_stat_activity where pid = %s", (pid,))
    assert last.startswith("insert")
    assert rows(postgres_source) == [(1, "kept")]
    assert [tx.gtrid in str(error) for error in told] == [True] * (left == "block")


@pytest.mark.parametrize("left", ["block", "cursor"])
@pytest.mark.parametrize("when", ["coordinator.begin", "coordinator.preparing", "coordinator.decided"])
def test_what_a_thread_leaves_within_the_end_executes_nothing(
    databases: Databases, postgres_source: DataSource, left: str, when: str
) -> None:
    """The branch is prepared on that very connection, or its COMMIT PREPARED is on its way."""
    told: list[BaseException] = []

    def leave_elsewhere() -> None:
        thread = threading.Thread(target=call_noting_errors, args=(end, told))
        thread.start()
        thread.join()

    databases.execute("two", "create table t (id integer primary key, v text)")
    try:
        with databases.datasource("two") as second, transaction() as tx:
            second.connect().execute("insert into t values (1, 'kept')")
            connection = postgres_source.connect()
            connection.execute("insert into t values (1, 'kept')")
            if left == "block":
                block = connection.transaction()
                block.__enter__()
                end = partial(block.__exit__, None, None, None)
            else:
                end = connection.cursor("named").execute("select generate_series(1, 9)").close
            failpoints.arm(when, leave_elsewhere)
    finally:
        failpoints.disarm()
    assert [tx.gtrid in str(error) for error in told] == [True] * (left == "block")
    assert rows(postgres_source) == databases.rows("two", "select id, v from t") == [(1, "kept")]


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


#: Rows that the server does not keep until there are more.
WIDE = "select repeat('x', 9000), pg_sleep(0.02) from generate_series(1, 50)"


@pytest.mark.parametrize("how", ["copy", "stream", "pipeline", "cursor"])
def test_a_connection_lost_inside_a_transaction(postgres_source: DataSource, databases: Databases, how: str) -> None:
    """It is said to be lost, and not that SQL has committed."""

    def lose(connection: Any) -> None:
        databases.rows("two", "select pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))

    with pytest.raises(psycopg.OperationalError) as caught, transaction():
        connection: Any = postgres_source.connect()
        connection.execute("insert into t values (1, 'lost')")
        if how == "copy":
            with connection.cursor().copy("copy t from stdin") as copy:
                lose(connection)
                copy.write_row((2, "lost"))
        elif how == "stream":
            for _ in connection.cursor().stream(WIDE):
                lose(connection)
        elif how == "pipeline":
            with connection.pipeline():
                lose(connection)
                connection.execute("insert into t values (2, 'lost')")
        else:
            lose(connection)
            connection.execute("insert into t values (2, 'lost')")
    assert "has ended its part" not in str(caught.value)
    assert rows(postgres_source) == []


def test_cursors_that_outlive_their_connection_disturb_nobody(postgres_source: DataSource) -> None:
    postgres_source.pool.resize(0, 1)
    connection: Any = postgres_source.connect()
    closed, unused, read = (connection.cursor() for _ in range(3))
    read.execute("select 1 union select 2")
    closed.close()
    connection.close()
    other: Any
    with postgres_source.connect() as other, other.pipeline():
        answer = other.execute("select 3")
        with pytest.raises(psycopg.InterfaceError):
            closed.fetchone()
        with pytest.raises(psycopg.ProgrammingError):
            unused.fetchone()
        assert read.fetchall() == [(1,), (2,)]
        read.close()
        with pytest.raises(psycopg.InterfaceError):
            read.fetchone()
        assert answer.raw.pgresult is None  # nobody has asked the server for it
        assert answer.fetchone() == (3,)
