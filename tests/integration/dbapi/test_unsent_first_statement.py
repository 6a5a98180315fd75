"""A first statement that psycopg cannot convert: nothing was sent, and what follows is in the transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from tests.support.unseen import unseen

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Databases

Work = Callable[[Any], object]


@pytest.fixture
def sources(databases: Databases, tmp_path: Path) -> Iterator[list[txpool.DataSource]]:
    txpool.configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    made = []
    for database in ("one", "two"):
        databases.execute(database, "create table t (n integer)")
        url, password = databases.url(database), databases.server.password
        made.append(txpool.DataSource(database, driver="psycopg", url=url, password=password))
    yield made
    for source in made:
        source.close()
    txpool.configure()


def unsent(connection: Any, statement: str = "insert into t values (%s)") -> None:
    with pytest.raises(psycopg.ProgrammingError, match="cannot adapt"):
        connection.execute(statement, [object()])


def savepoint(connection: Any) -> None:
    with connection.transaction():
        connection.execute("insert into t values (1)")
    with suppress(ZeroDivisionError), connection.transaction():
        connection.execute("insert into t values (2)")
        raise ZeroDivisionError


def first_in_a_block(connection: Any) -> None:
    with suppress(psycopg.ProgrammingError), connection.transaction():
        connection.execute("select %s", [object()])
    savepoint(connection)


def savepoint_by_hand(connection: Any) -> None:
    for statement in ("savepoint a", "insert into t values (2)", "rollback to a", "insert into t values (1)"):
        connection.execute(statement)


def copied(connection: Any) -> None:
    with connection.cursor().copy("copy t from stdin") as copy:
        copy.write_row((1,))


def in_a_pipeline(connection: Any) -> None:
    with connection.pipeline():
        connection.execute("insert into t values (%s)", [1])


WORKS = [savepoint, first_in_a_block, savepoint_by_hand, copied, in_a_pipeline]


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
def test_what_follows_is_in_the_transaction(
    sources: list[txpool.DataSource], databases: Databases, work: Work, *, committing: bool
) -> None:
    with suppress(ZeroDivisionError), txpool.transaction():
        for source in sources:
            connection = source.connect()
            unsent(connection)
            work(connection)
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        if not committing:
            raise ZeroDivisionError
    for database in ("one", "two"):
        assert databases.rows(database, "select n from t") == ([(1,)] if committing else [])
    assert databases.prepared() == []


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_programs_own_end_behind_it_is_seen(
    sources: list[txpool.DataSource], databases: Databases, ends: str
) -> None:
    first, second = sources
    with suppress(txpool.HeuristicMixed, txpool.TransactionRolledBack), txpool.transaction():
        second.connect().execute("insert into t values (1)")
        connection = first.connect()
        unsent(connection)
        with pytest.raises(txpool.ProgrammingError, match=ends.upper()):
            connection.execute(unseen(ends))
    assert databases.rows("two", "select n from t") == []


def test_alone_it_leaves_nothing_to_commit(sources: list[txpool.DataSource], databases: Databases) -> None:
    with txpool.transaction() as tx:
        for source in sources:
            unsent(source.connect())
    assert tx.status is txpool.Status.COMMITTED
    assert [source.statistics().destroyed for source in sources] == [0, 0]
    assert databases.prepared() == []
