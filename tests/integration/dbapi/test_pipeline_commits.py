"""The user's own COMMIT in a pipeline: it is an error at the end of the pipeline, also where nothing came before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.unseen import unseen
from txpool.datasource import DataSource
from txpool.errors import HeuristicError, ProgrammingError
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.mark.parametrize("before", [False, True])
def test_the_transaction_does_not_go_on(postgres_source: DataSource, databases: Databases, *, before: bool) -> None:
    with pytest.raises(HeuristicError), transaction(), postgres_source.connect() as connection:
        if before:
            connection.execute("insert into t values (0, 'v')")
        with pytest.raises(ProgrammingError, match="the SQL COMMIT has ended its part"), connection.pipeline():
            connection.execute("insert into t values (1, 'v')")
            connection.execute(unseen("commit"))
        with pytest.raises(ProgrammingError, match="rollback-only"):
            connection.execute("insert into t values (2, 'v')")
    assert databases.rows("one", "select id from t where id > 0") == [(1,)]


def test_an_empty_pipeline_is_none_of_it(postgres_source: DataSource, databases: Databases) -> None:
    with transaction(), postgres_source.connect() as connection:
        with connection.pipeline():
            pass
        with connection.pipeline():
            connection.execute("insert into t values (1, 'v')")
        with connection.pipeline():
            pass
    assert databases.rows("one", "select id from t") == [(1,)]


@pytest.mark.parametrize("command", ["commit", "rollback"])
@pytest.mark.parametrize("in_block", [False, True])
def test_what_was_answered_within_it_is_seen_by_the_next_statement(
    postgres_source: DataSource, databases: Databases, command: str, *, in_block: bool
) -> None:
    """Neither a statement nor a block may begin another local transaction: the block would commit it."""
    with (
        pytest.raises(HeuristicError),
        transaction(),
        postgres_source.connect() as connection,
        pytest.raises(ProgrammingError, match="has ended its part"),
        connection.pipeline() as pipeline,
    ):
        connection.execute("insert into t values (1, 'v')")
        connection.execute(unseen(command))
        pipeline.sync()
        if in_block:
            with connection.transaction():
                connection.execute("insert into t values (2, 'v')")
        connection.execute("insert into t values (3, 'v')")
    assert databases.rows("one", "select id from t where id > 0") == ([(1,)] if command == "commit" else [])
