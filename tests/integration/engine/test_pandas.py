"""pandas over a datasource's engine: with no transaction around, and inside one (managed.commit=join)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest
import sqlalchemy as sa

from tests.integration.engine.table import EngineTable
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.integration.conftest import Joining

FARES = pd.DataFrame({"id": [1, 2, 3], "name": ["a", "b", "c"]})


@pytest.fixture
def fares(joining: Joining) -> EngineTable:
    return EngineTable(*joining, name="fares")


def test_to_sql_and_read_sql(fares: EngineTable) -> None:
    FARES.to_sql("fares", fares.engine, index=False)
    FARES.assign(id=FARES.id + 3).to_sql("fares", fares.engine, index=False, if_exists="append", method="multi")
    read = pd.read_sql("select * from fares order by id", fares.engine)
    assert read.id.tolist() == [1, 2, 3, 4, 5, 6]
    assert fares.read() == [(1, "a"), (2, "b"), (3, "c"), (4, "a"), (5, "b"), (6, "c")]


def test_inside_a_transaction(fares: EngineTable) -> None:
    with transaction():
        FARES.to_sql("fares", fares.engine, index=False)
        read = pd.read_sql("select * from fares where id > 1", fares.engine)
        read.assign(id=read.id * 10).to_sql("fares", fares.engine, index=False, if_exists="append")
        assert fares.read() is None
    assert fares.read() == [(1, "a"), (2, "b"), (3, "c"), (20, "b"), (30, "c")]


def test_what_pandas_committed_goes_with_the_transaction(fares: EngineTable) -> None:
    with pytest.raises(ZeroDivisionError), transaction():
        FARES.to_sql("fares", fares.engine, index=False)
        assert len(pd.read_sql("select * from fares", fares.engine)) == 3
        raise ZeroDivisionError
    assert fares.read() is None


def test_a_failed_append_undoes_itself_alone(fares: EngineTable) -> None:
    with transaction():
        FARES.to_sql("fares", fares.engine, index=False)
        # pandas ends a failed append by commit(), which keeps nothing, and says what had failed.
        with pytest.raises((sa.exc.ProgrammingError, sa.exc.OperationalError), match=r"no_such_column|has no column"):
            wrong = FARES.rename(columns={"name": "no_such_column"})
            wrong.to_sql("fares", fares.engine, index=False, if_exists="append")
        FARES.head(1).to_sql("fares", fares.engine, index=False, if_exists="append")
    assert fares.read() == [(1, "a"), (1, "a"), (2, "b"), (3, "c")]
