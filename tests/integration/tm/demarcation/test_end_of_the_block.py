"""Its end belongs to the transaction, and nobody takes it for well when that went wrong."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.tm.demarcation.table import OneDatasource
from tests.support.unseen import unseen
from txpool.datasource import DataSource
from txpool.errors import PoolClosed, ProgrammingError, TransactionError, TransactionRolledBack, TransactionTimeout
from txpool.resources.marked.xids import Xids
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


def test_commit_and_rollback_on_it(world: OneDatasource) -> None:
    with transaction():
        connection = world.datasource.connect()
        world.insert(connection, 1)
        for end in (connection.commit, connection.rollback):
            with pytest.raises(ProgrammingError, match=r"managed\.commit = join"):
                end()
        world.insert(connection, 2)
    assert world.read() == [1, 2]


def test_autocommit_on_it(world: OneDatasource) -> None:
    name, on, off = (
        ("autocommit", True, False) if world.datasource.driver == "psycopg" else ("isolation_level", None, "")
    )
    for mode in ("refuse", "join"):
        datasource = world.open(managed_commit=mode)
        with pytest.raises(ZeroDivisionError), transaction():
            connection = datasource.connect()
            world.insert(connection, 1)
            with pytest.raises(ProgrammingError, match="owns"):
                setattr(connection, name, on)
            setattr(connection, name, getattr(connection, name))
            world.insert(connection, 2)
            raise ZeroDivisionError
    assert world.read() == []
    connection = world.datasource.connect()
    setattr(connection, name, on)
    with pytest.raises(ZeroDivisionError), transaction():
        world.insert(connection, 3)
        raise ZeroDivisionError
    assert world.read() == []
    world.insert(connection, 4)
    assert world.read() == [4]
    setattr(connection, name, off)
    connection.close()


@pytest.mark.parametrize("command", ["commit", "rollback"])
def test_the_users_own_sql_ends_it(world: OneDatasource, command: str) -> None:
    with pytest.raises(TransactionError) as caught, transaction():
        connection = world.datasource.connect()
        world.insert(connection, 1)
        with pytest.raises(ProgrammingError, match=f"the SQL {command.upper()} has ended"):
            connection.execute(unseen(command))
        with pytest.raises(ProgrammingError, match="rollback-only"):
            world.insert(connection, 2)
    # Nothing can undo what the user's own COMMIT has done; but it is never told as success.
    assert isinstance(caught.value, TransactionRolledBack) == (command == "rollback")
    assert world.read() == ([1] if command == "commit" else [])


def test_a_failure_of_the_first_statement_ends_nothing(world: OneDatasource) -> None:
    with transaction():
        connection = world.datasource.connect()
        cursor = connection.cursor()
        cursor.close()
        with pytest.raises(connection.Error):
            cursor.execute("select 1")
        world.insert(connection, 1)
    assert world.read() == [1]


def test_it_timed_out(world: OneDatasource) -> None:
    before = world.datasource.connect()
    expired = threading.Event()
    with pytest.raises(TransactionTimeout), transaction(timeout=0.05) as tx:
        tx.on_cancel(expired.set)
        connection = world.datasource.connect()
        world.insert(connection, 1)
        assert expired.wait(60)
        for use in (world.datasource.connect, connection.cursor, before.cursor):
            with pytest.raises(TransactionTimeout):
                use()
    assert world.read() == []
    before.close()


def test_it_is_rollback_only(world: OneDatasource) -> None:
    before = world.datasource.connect()
    with pytest.raises(TransactionRolledBack), transaction() as tx:
        connection = world.datasource.connect()
        world.insert(connection, 1)
        tx.set_rollback_only()
        for use in (world.datasource.connect, connection.cursor, before.cursor):
            with pytest.raises(ProgrammingError, match="rollback-only"):
                use()
    assert world.read() == []
    before.close()


def test_the_pool_is_closed_meanwhile(world: OneDatasource) -> None:
    idle = world.datasource.connect()
    with transaction():
        connection = world.datasource.connect()
        idle.close() if idle.pooled is not None else None
        world.insert(connection, 1)
        world.datasource.close()
        assert world.datasource.statistics().idle == 0
        world.insert(connection, 2)
        world.insert(world.datasource.connect(), 3)
    assert world.read() == [1, 2, 3]
    assert world.datasource.statistics().size == 0
    with pytest.raises(PoolClosed):
        world.datasource.connect()


@pytest.mark.parametrize("broken", ["orders", "ledger"])
def test_it_is_broken_at_prepare(databases: Databases, tmp_path: Path, broken: str) -> None:
    databases.execute("one", "create table t (n integer primary key)")
    with (
        databases.datasource("one", "orders") as orders,
        DataSource(name="ledger", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/one.db") as ledger,
        closing(sqlite3.connect(tmp_path / "one.db", isolation_level=None)) as bare,
    ):
        bare.execute("create table t (n integer primary key)")
        Xids("ledger", ledger.driver_adapter).create()
        with pytest.raises(TransactionRolledBack), transaction():
            connections = {"orders": orders.connect(), "ledger": ledger.connect()}
            for connection in connections.values():
                connection.execute("insert into t values (1)")
            if broken == "orders":
                pid = connections["orders"].info.backend_pid
                databases.rows("two", "select pg_terminate_backend(%s, 5000)", (pid,))
            else:
                connections["ledger"].holder().raw.close()  # type: ignore[union-attr]
        assert databases.rows("one", "select n from t") == bare.execute("select n from t").fetchall() == []
        assert bare.execute("select * from xids where xid <> 'txp1:identity'").fetchall() == []
        assert databases.prepared() == []
        assert {"orders": orders, "ledger": ledger}[broken].statistics().size == 0
