"""transaction_id=: what is refused, and what people are told where nothing can be recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from tests.integration.tm.demarcation.idempotent_work import ID, run
from tests.integration.tm.demarcation.table import OneDatasource
from txpool import AlreadyDone, OperationalError, ProgrammingError
from txpool.datasource import DataSource
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.transactional import transactional

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.support.strangers import Strangers

on_postgresql = pytest.mark.parametrize("world", ["psycopg"], indirect=True)


@on_postgresql
def test_where_nothing_can_be_recorded(world: OneDatasource, databases: Databases) -> None:
    """The error says so, nothing is done, and the outer transaction goes on."""
    run(world, 1, "another")
    with transaction():
        cursor = world.datasource.connect().cursor()
        cursor.execute("set transaction read only")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as refused:
            run(world, 2)
        assert cursor.execute("select n from t").fetchall() == [(1,)]
    assert "transaction_id='invoice-42' could not be recorded in txpool_spark.writes of one, and nothing was" in str(
        refused.value.__notes__
    )
    databases.execute("one", "drop schema txpool_spark cascade")
    with pytest.raises(psycopg.errors.UndefinedTable):
        run(world, 3)
    run(world, 4)  # and it is made anew
    assert world.read() == [1, 4]


def test_a_role_that_may_create_nothing(strangers: Strangers) -> None:
    strangers.admin("revoke create on database one from app", "create table t (n integer)", "grant all on t to app")
    with DataSource(
        name="app", driver="psycopg", url=strangers.url(), password=strangers.password, pool_max_size=1
    ) as datasource:

        def work() -> None:
            with transaction(transaction_id=ID, record_in=datasource):
                datasource.connect().execute("insert into t values (1)")

        with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
            work()
        assert "create schema txpool_spark authorization" in str(refused.value.__notes__)
        strangers.admin("create schema txpool_spark authorization app")
        work()
        with pytest.raises(AlreadyDone):
            work()
    assert strangers.databases.rows("one", "select count(*) from t") == [(1,)]


def test_32_a_strangers_table_says_nothing(strangers: Strangers) -> None:
    strangers.does("mallory", "create schema txpool_spark", "grant all on schema txpool_spark to public")
    with (
        DataSource(name="app", driver="psycopg", url=strangers.url(), password=strangers.password) as datasource,
        pytest.raises(OperationalError, match="schema txpool_spark belongs to mallory"),
        transaction(transaction_id=ID, record_in=datasource),
    ):
        pytest.fail("the body must not run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transaction_id": ID}, "needs record_in="),
        ({"record_in": "one"}, "record_in= is where a transaction_id= is recorded"),
        ({"transaction_id": 42, "record_in": "one"}, "is text, and not int"),
        ({"transaction_id": "", "record_in": "one"}, "1 to 200 printable characters"),
        ({"transaction_id": "x" * 201, "record_in": "one"}, "has 201"),
        ({"transaction_id": "a\nb", "record_in": "one"}, "not printable"),
        ({"transaction_id": "a\0b", "record_in": "one"}, "not printable"),
    ],
)
def test_what_is_no_id(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgrammingError, match=message):
        transaction(**options)
    with pytest.raises(ProgrammingError, match=message):
        transactional(**options)(int)
    assert current() is None


def test_what_is_no_place_and_no_propagation(world: OneDatasource) -> None:
    with pytest.raises(txpool.ConfigurationError, match="nowhere"):
        transaction(transaction_id=ID, record_in="nowhere")
    with pytest.raises(ProgrammingError, match="a transaction_id has no use with 'supports'"):
        transactional("supports", transaction_id=ID, record_in="one")
    wrong = transactional(transaction_id=lambda: 7, record_in=world.datasource)(lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ProgrammingError, match="is text, and not int"):
        wrong()
    wrong = transactional(transaction_id=lambda: None, record_in=world.datasource)(lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ProgrammingError, match="is text, and not NoneType"):
        wrong()
    assert current() is None
