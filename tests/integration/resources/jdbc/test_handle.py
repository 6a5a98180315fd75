"""The connections that users hold: what belongs to a transaction stays in it, and what is set ends with the handle."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

import txpool
from tests.conftest import Databases
from tests.support.jdbc_places import JdbcPlaces
from txpool.datasource import DataSource
from txpool.resources.jdbc.dbapi.connection import JdbcConnection
from txpool.tm.manager import configure


@pytest.fixture
def source(jdbc_places: JdbcPlaces, databases: Databases) -> Iterator[DataSource]:
    manager = configure(node_name="tests", log_url="memory:")
    yield jdbc_places.open("postgresql")
    manager.close()


def test_modes_are_not_set_inside_a_transaction(source: DataSource, databases: Databases) -> None:
    with txpool.transaction():
        connection = source.connect()
        assert isinstance(connection, JdbcConnection)
        connection.execute("insert into t (id) values (?)", (1,))
        for name, value in (("autocommit", True), ("isolation", 8), ("read_only", True)):
            with pytest.raises(txpool.ProgrammingError, match=rf"{name} cannot be .* inside txp1:.*, which owns it"):
                setattr(connection, name, value)
        connection.autocommit = False
        for name in ("run", "reset", "abort", "call", "answer", "tpc_begin", "no_such_thing"):
            assert not hasattr(connection, name)
        assert databases.rows("one", "select id from t") == []
    assert databases.rows("one", "select id from t") == [(1,)]


def test_what_is_set_on_a_plain_connection_is_its_own(source: DataSource, databases: Databases) -> None:
    with source.connect() as connection:
        first = connection.execute("select pg_backend_pid()").fetchone()
        connection.rollback()
        connection.autocommit, connection.isolation, connection.query_timeout = True, 8, 7
        connection.set_network_timeout(30)
        connection.execute("insert into t (id) values (1)")
        assert databases.rows("one", "select id from t") == [(1,)]
        assert connection.execute("show default_transaction_isolation").fetchone() == ("serializable",)
    assert connection.closed
    with pytest.raises(txpool.InterfaceError):
        connection.execute("select 1")
    with source.connect() as connection:
        assert connection.execute("select pg_backend_pid()").fetchone() == first
        assert (connection.autocommit, connection.isolation, connection.query_timeout) == (False, 2, None)
        assert connection.java.getNetworkTimeout() == 0
        connection.execute("insert into t (id) values (2)")
    with pytest.raises(ZeroDivisionError), source.connect() as connection:
        connection.execute("insert into t (id) values (3)")
        raise ZeroDivisionError
    assert databases.rows("one", "select id from t order by id") == [(1,), (2,)], "committed, and rolled back"


LEAVING = {
    "set_config": "select set_config('search_path', 'nowhere', false)",
    "pg_settings": "update pg_settings set setting = 'off' where name = 'synchronous_commit'",
    "a lock": "select pg_advisory_lock(7)",
    "a function": "select leave()",
    "a function in a write": "insert into t (id) select leave()",
}


@pytest.mark.parametrize("enlisted", [False, True])
@pytest.mark.parametrize("statement", LEAVING)
def test_what_a_statement_leaves_its_next_user_does_not_find(
    source: DataSource, databases: Databases, statement: str, *, enlisted: bool
) -> None:
    databases.execute(
        "one",
        "create function leave() returns integer language plpgsql as $$ begin "
        "perform set_config('search_path', 'nowhere', false), pg_advisory_lock(7); return 1; end $$",
    )
    question = (
        "select current_setting('search_path'), current_setting('synchronous_commit'),"
        " (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())"
    )

    def state() -> object:
        with source.connect() as connection:
            return connection.execute(question).fetchone()

    before = state()
    with txpool.transaction() if enlisted else nullcontext(), source.connect() as connection:
        connection.execute(LEAVING[statement])
    assert state() == before


def test_cancel_from_another_thread(source: DataSource) -> None:
    ends = threading.Event()
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction() as transaction:
        connection = source.connect()
        connection.execute("select 1")

        def cancel() -> None:
            while not ends.wait(0.05):
                connection.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        began = time.monotonic()
        with pytest.raises(txpool.OperationalError):
            connection.execute("select pg_sleep(60)")
        ends.set()
        thread.join()
        assert time.monotonic() - began < 50
        transaction.set_rollback_only()


def test_an_open_result_is_closed_with_its_transaction(source: DataSource, databases: Databases) -> None:
    query = "select name from pg_cursors where name <> ''"
    with txpool.transaction():
        connection = source.connect()
        connection.fetch_size = 10
        cursor = connection.execute("select * from generate_series(1, 10000)")
        assert cursor.fetchone() == (1,)
        assert connection.execute(query).fetchall() != []
    with pytest.raises(txpool.InterfaceError):
        cursor.fetchall()
    with source.connect() as connection:
        assert connection.execute(query).fetchall() == []
        assert connection.fetch_size == 0
