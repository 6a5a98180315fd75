"""The program's own COMMIT in a transaction: the error at its end says who has committed, and where that is kept."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.support.unseen import unseen

if TYPE_CHECKING:
    from tests.conftest import Databases
    from txpool.datasource import DataSource


@pytest.mark.parametrize("swallowed", [True, False])
def test_it_is_told_as_the_programs_own(postgres_source: DataSource, databases: Databases, *, swallowed: bool) -> None:
    with pytest.raises(txpool.HeuristicCommit) as raised, txpool.transaction():
        connection = postgres_source.connect()
        connection.execute("insert into t values (1, 'v')")
        with suppress(txpool.ProgrammingError if swallowed else ZeroDivisionError):
            connection.execute(unseen("commit"))
    said = str(raised.value)
    assert "the SQL COMMIT has ended its part" in said
    assert "by the program itself or by somebody else (one committed)" in said
    assert "The record is kept: see `txpool-recovery show`" in said
    assert databases.rows("one", "select id from t") == [(1,)]


def test_without_a_log_no_record_is_promised(postgres_source: DataSource) -> None:
    txpool.configure()
    with pytest.raises(txpool.HeuristicCommit) as raised, txpool.transaction():
        connection = postgres_source.connect()
        connection.execute("insert into t values (1, 'v')")
        connection.execute(unseen("commit"))
    assert str(raised.value).endswith("No decision log has a record of it: look at the data.")
