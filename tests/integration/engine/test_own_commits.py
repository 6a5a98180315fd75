"""An engine's own connections join commits within a transaction, whatever the datasource's other connections do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm

import txpool
from tests.integration.engine.table import EngineTable
from txpool.datasource import DataSource
from txpool.errors import ProgrammingError, TransactionRolledBack
from txpool.resources.marked.xids import Xids
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


class Base(orm.DeclarativeBase):
    pass


class Fare(Base):
    __tablename__ = "fare"

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(20))


@pytest.fixture(params=["postgresql", "sqlite"])
def fares(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineTable]:
    """A datasource as it is without `managed.commit`."""
    bare: Callable[[], Any]
    if request.param == "postgresql":
        databases: Databases = request.getfixturevalue("databases")
        options = {"driver": "psycopg", "url": databases.url("one"), "password": databases.server.password}
        bare = lambda: psycopg.connect(databases.dsn("one"), autocommit=True)
    else:
        options = {"driver": "sqlite3", "mode": "cmr", "url": f"sqlite:///{tmp_path}/one.db"}
        bare = lambda: sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    with DataSource("fares", **options) as datasource:
        if request.param == "sqlite":
            Xids("fares", datasource.driver_adapter).create()
        table = EngineTable(datasource, bare, name="fare")
        table.execute("create table fare (id integer primary key, name varchar(20))")
        yield table


def test_a_session_commits_and_rolls_back_its_own_work(fares: EngineTable) -> None:
    with transaction(), orm.Session(txpool.create_engine(fares.datasource)) as session:
        session.add(Fare(id=1, name="a"))
        session.commit()
        session.add(Fare(id=2, name="lost"))
        session.flush()
        session.rollback()
        session.add(Fare(id=3, name="c"))
        session.commit()
        assert fares.read() == []
    assert fares.read() == [(1, "a"), (3, "c")]


def test_a_session_that_was_begun_outside(fares: EngineTable) -> None:
    with orm.Session(fares.engine) as session:
        with pytest.raises(ZeroDivisionError), transaction():
            session.add(Fare(id=1, name="lost"))
            session.commit()
            raise ZeroDivisionError
        session.add(Fare(id=2, name="b"))
        session.commit()
        assert fares.read() == [(2, "b")]


def test_pandas(fares: EngineTable) -> None:
    with transaction():
        pd.DataFrame({"id": [1], "name": ["a"]}).to_sql("fare", fares.engine, index=False, if_exists="append")
        assert len(pd.read_sql("select * from fare", fares.engine)) == 1
        assert fares.read() == []
    assert fares.read() == [(1, "a")]


def test_other_connections_of_the_datasource_stay_as_they_are(fares: EngineTable) -> None:
    with transaction():
        with closing(fares.datasource.connect()) as before, fares.engine.begin() as connection:
            before.cursor().execute("insert into fare values (1, 'a')")
            connection.execute(sa.insert(Fare).values(id=2, name="b"))
            with pytest.raises(ProgrammingError, match=r"txpool.create_engine\(\)"):
                before.commit()
        with closing(fares.datasource.connect()) as behind:
            with pytest.raises(ProgrammingError, match="its work ends with the transaction"):
                behind.rollback() if behind.cursor().execute("select 1") else behind.commit()
            behind.cursor().execute("insert into fare values (3, 'c')")
    assert fares.read() == [(1, "a"), (2, "b"), (3, "c")]


def test_a_rollback_never_undoes_another_connections_work(fares: EngineTable) -> None:
    with pytest.raises(TransactionRolledBack, match="what another has done since"), transaction():
        with closing(fares.datasource.connect()) as other, fares.engine.connect() as connection:
            connection.execute(sa.insert(Fare).values(id=1, name="a"))
            other.cursor().execute("insert into fare values (2, 'b')")
            with pytest.raises(ProgrammingError, match="what another has done since"):
                connection.rollback()
    assert fares.read() == []


def test_a_connection_that_is_given_up(fares: EngineTable) -> None:
    """Without a commit its work is never kept. What it has committed goes with the transaction."""
    with transaction(), fares.engine.connect() as connection:
        connection.execute(sa.insert(Fare).values(id=1, name="a"))
        connection.commit()
        connection.invalidate()
    with pytest.raises(TransactionRolledBack, match="given up by SQLAlchemy"), transaction():
        with fares.engine.connect() as connection:
            connection.execute(sa.insert(Fare).values(id=2, name="b"))
            connection.invalidate()
    assert fares.read() == [(1, "a")]


def test_an_engine_inside_a_block_of_psycopg(databases: Databases) -> None:
    """The savepoint of an engine's connection goes with a block that another connection has opened before it."""
    with databases.datasource("one") as datasource:
        engine = txpool.create_engine(datasource)
        with transaction():
            other = datasource.connect()
            other.execute("create table fare (id integer primary key, name varchar(20))")
            connection = engine.connect()
            with pytest.raises(ZeroDivisionError), other.transaction():
                connection.execute(sa.insert(Fare).values(id=1, name="lost"))
                with pytest.raises(ProgrammingError, match="leave the block first"):
                    connection.commit()
                raise ZeroDivisionError
            connection.close()
            with engine.begin() as again:
                again.execute(sa.insert(Fare).values(id=2, name="b"))
            with other.transaction():
                other.execute("insert into fare values (3, 'c')")
    assert databases.rows("one", "select id from fare order by id") == [(2,), (3,)]
