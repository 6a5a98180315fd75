"""A transaction's first statement fails, or the BEGIN that shares its message does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.integration.dbapi.first_statement.messages import IDLE, INSERT, INTRANS, First, rolled_back
from tests.support.unseen import unseen
from txpool.datasource import DataSource
from txpool.errors import HeuristicCommit, TransactionRolledBack
from txpool.tm.completion.status import Status
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.mark.parametrize(
    ("statement", "parameters", "error"),
    [
        ("selec", (), psycopg.errors.SyntaxError),
        ("select 1/%s", (0,), psycopg.errors.DivisionByZero),
        ("select nothing", (), psycopg.errors.UndefinedColumn),
        ("insert into t values (%s, %s)", (1, "taken"), psycopg.errors.UniqueViolation),
    ],
)
@pytest.mark.parametrize("prepare", [None, True])
def test_it_fails(
    postgres_source: DataSource,
    databases: Databases,
    statement: str,
    parameters: tuple[Any, ...],
    error: type[Exception],
    prepare: bool | None,
) -> None:
    databases.execute("one", "insert into t values (1, 'v')")
    with pytest.raises(TransactionRolledBack, match="its error was caught") as caught:
        with transaction(), postgres_source.connect() as connection:
            with pytest.raises(error):
                connection.execute(statement, parameters or None, prepare=prepare)
            assert connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR
    # psycopg forgets a prepared statement that has failed; one that it could not prepare it has not forgotten.
    assert prepare or f"it was {statement.split(maxsplit=1)[0]}" in str(caught.value)
    assert "it was )" not in str(caught.value)
    with transaction(), postgres_source.connect() as connection:  # the next user's is whole
        connection.execute(INSERT, (2, "w"))
    assert databases.rows("one", "select id from t order by 1") == [(1,), (2,)]


def test_what_is_never_sent_begins_nothing(postgres_source: DataSource, databases: Databases) -> None:
    with transaction(), postgres_source.connect() as connection:
        for wrong in ((INSERT, (1,)), (INSERT, (1, object())), (INSERT, {"no": 1})):
            with pytest.raises((psycopg.ProgrammingError, TypeError)):
                connection.execute(*wrong)
            assert connection.info.transaction_status is IDLE
        connection.execute(INSERT, (1, "v"))
    assert databases.rows("one", "select id from t") == [(1,)]


def test_a_begin_that_is_refused(postgres_source: DataSource, databases: Databases) -> None:
    """Nothing of the statement executes, prepared or not, and the next one begins again."""
    with transaction(), postgres_source.connect() as connection:
        raw = connection.current_enlistment().raw
        for prepare in (None, True):
            raw.beginning = "begin transaction of another kind"
            with pytest.raises(psycopg.errors.SyntaxError, match="of"):
                connection.execute(INSERT, (1, "v"), prepare=prepare)
            assert connection.info.transaction_status is IDLE
        raw.beginning = ""
        connection.execute(INSERT, (2, "v"))
    assert databases.rows("one", "select id from t") == [(2,)]


@pytest.mark.parametrize("prepare", [None, True])
def test_a_statement_that_libpq_does_not_take(
    postgres_source: DataSource, databases: Databases, prepare: bool | None
) -> None:
    """As psycopg's, its error leaves a transaction that goes on."""
    many = 65536
    statement = f"select 1 where 1 in ({', '.join(['%s'] * many)})"
    with transaction(), postgres_source.connect() as connection:
        with pytest.raises(psycopg.OperationalError, match="number of parameters"):
            connection.execute(statement, [1] * many, prepare=prepare)
        assert connection.info.transaction_status is INTRANS
        connection.execute(INSERT, (1, "v"))
    with transaction(), postgres_source.connect() as connection:
        connection.current_enlistment().raw.beginning = "begin transaction of another kind"
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute(statement, [1] * many, prepare=prepare)
        connection.current_enlistment().raw.beginning = ""
    assert databases.rows("one", "select id from t") == [(1,)]


@pytest.mark.parametrize("end", ["commit", "rollback", "listen x; commit"])
def test_the_statement_s_own_commit_before_its_error(
    postgres_source: DataSource, databases: Databases, end: str
) -> None:
    """It is never told as a transaction of which nothing was done."""
    with pytest.raises(HeuristicCommit), transaction() as tx, postgres_source.connect() as connection:
        with pytest.raises(psycopg.ProgrammingError, match="has ended its part"):
            connection.execute(unseen(f"insert into t values (1, 'v'); {end}; select 1/0"))
        assert tx.status is Status.MARKED_ROLLBACK
    assert databases.rows("one", "select id from t") == ([] if end == "rollback" else [(1,)])
    with transaction(), postgres_source.connect() as connection:
        assert connection.execute("select pg_listening_channels()").fetchall() == []


def test_only_a_begin_that_is_refused(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        connection.current_enlistment().raw.beginning = "begin transaction of another kind"
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute("select 1")
    with transaction(), postgres_source.connect() as connection:
        connection.current_enlistment().raw.beginning = ""
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "first",
    [
        lambda connection: connection.execute("copy t from '/nowhere'"),
        lambda connection: connection.execute("copy t to stdout"),
        lambda connection: connection.execute("select $1"),
    ],
    ids=["copy from a file", "copy to the client", "a dollar"],
)
def test_what_libpq_would_not_take_there(postgres_source: DataSource, first: First) -> None:
    with rolled_back(), postgres_source.connect() as connection:
        with pytest.raises(psycopg.Error):
            first(connection)
        assert connection.info.transaction_status is not IDLE
    with transaction(), postgres_source.connect() as connection:
        assert connection.execute("select 1").fetchone() == (1,)
