"""managed.commit = join: a handle's commit and rollback keep and undo what it did, within the transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.integration.tm.demarcation.table import OneDatasource
from txpool.datasource import DataSource
from txpool.errors import Error, ProgrammingError, TransactionRolledBack
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture
def join(world: OneDatasource) -> DataSource:
    return world.open(managed_commit="join")


def test_a_handle_keeps_and_undoes_what_it_did(world: OneDatasource, join: DataSource) -> None:
    with transaction():
        connection = join.connect()
        connection.rollback()
        connection.commit()
        world.insert(connection, 1)
        connection.commit()
        world.insert(connection, 2)
        connection.rollback()
        connection.rollback()
        world.insert(connection, 3)
        with pytest.raises(connection.IntegrityError):
            world.insert(connection, 3)
        connection.rollback()
        world.insert(connection, 4)
        connection.close()
        assert world.read() == []
    assert world.read() == [1, 4]
    connection.close()


def test_what_a_handle_kept_goes_with_the_transaction(world: OneDatasource, join: DataSource) -> None:
    with pytest.raises(ZeroDivisionError), transaction():
        connection = join.connect()
        world.insert(connection, 1)
        connection.commit()
        raise ZeroDivisionError
    assert world.read() == []


def test_two_handles_one_after_another(world: OneDatasource, join: DataSource) -> None:
    with transaction():
        first, second = join.connect(), join.connect()
        world.insert(first, 1)
        first.commit()
        world.insert(second, 2)
        second.rollback()
        world.insert(first, 3)
        first.rollback()
        world.insert(second, 4)
        second.commit()
    assert world.read() == [1, 4]


def test_two_handles_nested(world: OneDatasource, join: DataSource) -> None:
    with transaction():
        first, second = join.connect(), join.connect()
        world.insert(first, 1)
        world.insert(second, 2)
        second.rollback()
        world.insert(second, 3)
        second.commit()
        first.commit()
        world.insert(first, 4)
        first.rollback()
    assert world.read() == [1, 3]


def test_a_commit_below_the_top_is_released_later(world: OneDatasource, join: DataSource) -> None:
    with transaction():
        first, second = join.connect(), join.connect()
        world.insert(first, 1)
        world.insert(second, 2)
        first.commit()
        second.rollback()
        world.insert(first, 3)
        first.rollback()
    assert world.read() == [1]


def test_a_rollback_that_would_undo_anothers_work(world: OneDatasource, join: DataSource) -> None:
    with pytest.raises(TransactionRolledBack, match="what another has done since"), transaction():
        first, second = join.connect(), join.connect()
        world.insert(first, 1)
        world.insert(second, 2)
        second.commit()
        with pytest.raises(ProgrammingError, match="what another has done since"):
            first.rollback()
        with pytest.raises(ProgrammingError, match="rollback-only"):
            world.insert(second, 3)
        second.rollback()
    assert world.read() == []


def test_another_that_came_too_late_overlays_nothing(databases: Databases) -> None:
    """Where a statement has failed, PostgreSQL lets nobody work before it is undone, and so nobody is in the way."""
    databases.execute("one", "create table t (n integer primary key)")
    with (
        databases.datasource("one", managed_commit="join") as datasource,
        transaction(),
    ):
        first, second = datasource.connect(), datasource.connect()
        with pytest.raises(psycopg.errors.UndefinedTable):
            first.execute("select * from nowhere")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            second.execute("insert into t values (1)")
        first.rollback()
        second.execute("insert into t values (2)")
        second.commit()
    assert databases.rows("one", "select n from t") == [(2,)]


def test_rollback_after_its_transaction(world: OneDatasource, join: DataSource) -> None:
    with transaction():
        connection = join.connect()
        world.insert(connection, 1)
    connection.rollback()
    with pytest.raises(Error, match="has ended"):
        connection.commit()
    connection.close()
    assert world.read() == [1]


def test_psycopgs_own_blocks_among_the_savepoints(databases: Databases) -> None:
    databases.execute("one", "create table t (n integer primary key)")
    with databases.datasource("one", managed_commit="join") as datasource:
        with transaction():
            first, second = datasource.connect(), datasource.connect()
            with first.transaction():
                first.execute("insert into t values (1)")
                with pytest.raises(ProgrammingError, match="leave the block"):
                    first.commit()
                second.execute("insert into t values (2)")
            second.commit()
            first.commit()
            with first.transaction() as block:
                second.execute("insert into t values (3)")
                raise psycopg.Rollback(block)
            second.rollback()
            first.execute("insert into t values (4)")
            first.commit()
        assert databases.rows("one", "select n from t order by n") == [(1,), (2,), (4,)]
        with pytest.raises(TransactionRolledBack), transaction():
            first, second = datasource.connect(), datasource.connect()
            with first.transaction():
                second.execute("insert into t values (5)")
            with pytest.raises(ProgrammingError, match="what another has done since"):
                second.rollback()
        assert databases.rows("one", "select n from t order by n") == [(1,), (2,), (4,)]
