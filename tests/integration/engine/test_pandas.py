"""pandas over a datasource's engine: with no transaction around, and inside one (managed.commit=join)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pandas as pd
import psycopg
import pytest
import sqlalchemy as sa

from txpool.datasource import DataSource
from txpool.engine import create_engine
from txpool.tm.manager import configure
from txpool.tm.scope import transaction

if TYPE_CHECKING:
    from tests.integration.conftest import Joining

FARES = pd.DataFrame({"id": [1, 2, 3], "name": ["a", "b", "c"]})


@pytest.fixture(autouse=True)
def coordinator() -> Iterator[None]:
    manager = configure(node_name="tests", log_url="memory:")
    yield
    manager.close()


class World:
    def __init__(self, datasource: DataSource, bare: Any) -> None:
        self.engine = create_engine(datasource)
        self._bare = bare

    def read(self) -> list[Any] | None:
        """The rows, or None where there is no table."""
        with closing(self._bare()) as raw:
            try:
                found: list[Any] = raw.execute("select id, name from fares order by id").fetchall()
            except (psycopg.errors.UndefinedTable, sqlite3.OperationalError):
                return None
        return found


@pytest.fixture
def world(joining: Joining) -> World:
    return World(*joining)


def test_to_sql_and_read_sql(world: World) -> None:
    FARES.to_sql("fares", world.engine, index=False)
    FARES.assign(id=FARES.id + 3).to_sql("fares", world.engine, index=False, if_exists="append", method="multi")
    read = pd.read_sql("select * from fares order by id", world.engine)
    assert read.id.tolist() == [1, 2, 3, 4, 5, 6]
    assert world.read() == [(1, "a"), (2, "b"), (3, "c"), (4, "a"), (5, "b"), (6, "c")]


def test_inside_a_transaction(world: World) -> None:
    with transaction():
        FARES.to_sql("fares", world.engine, index=False)
        read = pd.read_sql("select * from fares where id > 1", world.engine)
        read.assign(id=read.id * 10).to_sql("fares", world.engine, index=False, if_exists="append")
        assert world.read() is None
    assert world.read() == [(1, "a"), (2, "b"), (3, "c"), (20, "b"), (30, "c")]


def test_what_pandas_committed_goes_with_the_transaction(world: World) -> None:
    with pytest.raises(ZeroDivisionError), transaction():
        FARES.to_sql("fares", world.engine, index=False)
        assert len(pd.read_sql("select * from fares", world.engine)) == 3
        raise ZeroDivisionError
    assert world.read() is None


def test_a_failed_append_undoes_itself_alone(world: World) -> None:
    with transaction():
        FARES.to_sql("fares", world.engine, index=False)
        # pandas ends a failed append by commit(), which keeps nothing, and says what had failed.
        with pytest.raises((sa.exc.ProgrammingError, sa.exc.OperationalError), match=r"no_such_column|has no column"):
            wrong = FARES.rename(columns={"name": "no_such_column"})
            wrong.to_sql("fares", world.engine, index=False, if_exists="append")
        FARES.head(1).to_sql("fares", world.engine, index=False, if_exists="append")
    assert world.read() == [(1, "a"), (1, "a"), (2, "b"), (3, "c")]
