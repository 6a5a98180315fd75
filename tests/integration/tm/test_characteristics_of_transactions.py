"""Isolation level and read-only of a transaction: every branch begins so, and the databases refuse the rest."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest

import txpool
from tests.integration.tm.characteristics import LEVELS, SHOW, Sources, ask, write
from txpool.tm.ambient import make_ambient
from txpool.tm.subordinate import Subordinate

# Blocks without work of their own
pytestmark = pytest.mark.filterwarnings("ignore::txpool.EmptyTransactionWarning")


@pytest.mark.parametrize("level", LEVELS)
def test_every_branch_of_a_transaction_begins_so_and_the_next_user_as_before(sources: Sources, level: str) -> None:
    one = sources.open("one", transaction_isolation="repeatable-read", transaction_read_only=True)
    two = sources.open("two")
    for begun in (level, level.upper().replace("-", " "), level.replace("-", "_")):
        with txpool.transaction(isolation=begun, read_only=False):  # type: ignore[arg-type]
            assert ask(one) == ask(two) == (level.replace("-", " "), "off")
            write(one)
            write(two)
        with txpool.transaction(read_only=True):
            assert ask(one) == ("repeatable read", "on")
            assert ask(two) == ("read committed", "on")
        assert ask(one) == ("repeatable read", "on")
        assert ask(two) == ("read committed", "off")
    for name in ("one", "two"):
        assert sources.databases.rows(name, "select n from t where id = 1") == [(7,)]


def test_begin_and_decorated_functions_begin_so(sources: Sources) -> None:
    one = sources.open("one")
    begun = txpool.begin(isolation="serializable", read_only=True)
    assert ask(one) == ("serializable", "on")
    assert (begun.characteristics.isolation, begun.characteristics.read_only) == ("serializable", True)
    txpool.commit()

    @txpool.transactional(isolation="serializable", read_only=True)
    def sync() -> Any:
        return ask(one)

    @txpool.transactional("requires_new", isolation="repeatable-read")
    async def coroutine() -> Any:
        return ask(one)

    assert sync() == ("serializable", "on")
    assert asyncio.run(coroutine()) == ("repeatable read", "off")
    assert ask(one) == ("read committed", "off")


@pytest.mark.parametrize(("level", "refused"), [("serializable", True), ("read-committed", False)])
def test_a_serialization_failure_over_two_databases_occurs_at_serializable_alone(
    sources: Sources, level: Any, refused: bool
) -> None:
    """And nothing of the refused transaction stays in the other database."""
    one, two = sources.open("one", pool_max_size=2), sources.open("two", pool_max_size=2)

    def work(number: int) -> None:
        with closing(one.connect()) as connection:
            connection.cursor().execute("select sum(n) from t").fetchone()
            connection.cursor().execute("update t set n = n + 1 where id = %s", (number,))
        with closing(two.connect()) as connection:
            connection.cursor().execute("update t set n = n + 1 where id = %s", (number,))

    first = txpool.begin(isolation=level)
    work(1)
    txpool.suspend()
    second = txpool.begin(isolation=level)
    work(2)
    txpool.suspend()
    first.commit()
    if refused:
        with pytest.raises(txpool.TransactionRolledBack):
            second.commit()
    else:
        second.commit()
    for name in ("one", "two"):
        rows = sources.databases.rows(name, "select n from t order by id")
        assert rows == [(1,), (0,) if refused else (1,)], name
    assert sources.databases.rows("one", "select gid from pg_prepared_xacts") == []


def test_attempts_repeat_what_serializable_refuses(sources: Sources) -> None:
    one = sources.open("one", pool_max_size=2)
    other = psycopg.connect(sources.databases.server.dsn("one"))
    tries = []

    @txpool.transactional(isolation="serializable", attempts=3)
    def work() -> None:
        tries.append(1)
        with closing(one.connect()) as connection:
            connection.cursor().execute("select sum(n) from t").fetchone()
            if len(tries) == 1:
                other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
                other.execute("select sum(n) from t")
                other.execute("update t set n = 5 where id = 2")
                other.commit()
            connection.cursor().execute("update t set n = 6 where id = 2")

    work()
    other.close()
    assert len(tries) == 2
    assert sources.databases.rows("one", "select n from t where id = 2") == [(6,)]


@pytest.mark.parametrize("level", [None, "serializable"])
def test_a_read_only_transaction_decides_nothing_and_writes_no_mark(sources: Sources, level: Any) -> None:
    one, two, lite = sources.open("one"), sources.open("two"), sources.open_lite("cmr")
    book = sources.open("book", "one", mode="cmr")
    book.xids_table().create()  # type: ignore[attr-defined]
    for marked in (lite, book):
        rows = ask(marked, "select count(*) from xids")
        with txpool.transaction(isolation=level, read_only=True):
            for source in (one, two, marked):
                assert ask(source, "select n from t where id = 2") == (0,)
        assert ask(marked, "select count(*) from xids") == rows
        with txpool.transaction():
            for source in (two, marked):
                write(source)
        assert ask(marked, "select count(*) from xids") == (rows[0] + 1,)
    assert ask(lite, "select n from t where id = 1") == (7,)
    assert ask(lite, "pragma query_only") == (0,)


def test_what_a_read_only_transaction_would_write_is_refused_by_each_database(sources: Sources) -> None:
    one, lite = sources.open("one"), sources.open_lite("cmr")
    for source, error in ((one, psycopg.errors.ReadOnlySqlTransaction), (lite, sqlite3.OperationalError)):
        with pytest.raises(error), txpool.transaction(read_only=True):
            write(source)
        with txpool.transaction():
            write(source)
    assert ask(lite, "select n from t where id = 1") == (7,)


def test_a_datasource_that_cannot_is_refused_and_the_rest_goes_on(sources: Sources) -> None:
    one, lite = sources.open("one"), sources.open_lite("cmr")
    with txpool.transaction(isolation="repeatable-read") as tx:
        write(one)
        with pytest.raises(txpool.ProgrammingError, match=f"lite cannot join {tx.gtrid}.*serializable.*as it was"):
            lite.connect()
        write(one, 8)
    assert sources.databases.rows("one", "select n from t where id = 1") == [(8,)]
    assert lite.statistics().taken == 0
    with txpool.transaction(isolation="serializable"):
        write(one, 9)
        write(lite, 9)
    assert ask(lite, "select n from t where id = 1") == (9,)


def test_a_nested_block_that_asks_for_something_else_is_refused(sources: Sources) -> None:
    one = sources.open("one")
    with txpool.transaction(isolation="serializable", read_only=True):
        for same in ({}, {"isolation": "SERIALIZABLE"}, {"read_only": True}):
            with txpool.transaction(**same):
                ask(one)
        for other in ({"isolation": "read-committed"}, {"read_only": False}):
            with pytest.raises(txpool.ProgrammingError, match="outermost"), txpool.transaction(**other):
                pytest.fail("it is not entered")
            with pytest.raises(txpool.ProgrammingError, match="requires_new"):
                txpool.transactional(**other)(ask)(one)
            with pytest.raises(txpool.ProgrammingError, match="outermost"):
                txpool.transactional("mandatory", **other)(ask)(one)
        own = sources.open("own", "one")
        assert txpool.transactional("requires_new", isolation="repeatable-read")(ask)(own) == ("repeatable read", "off")
    with txpool.transaction():
        with txpool.transaction(read_only=False):
            write(one)
        for other in ({"isolation": "read-committed"}, {"read_only": True}):
            with pytest.raises(txpool.ProgrammingError, match="no characteristics"), txpool.transaction(**other):
                pytest.fail("it is not entered")
    assert sources.databases.rows("one", "select n from t where id = 1") == [(7,)]


def test_arguments_that_are_none() -> None:
    for wrong in ({"isolation": "snapshot"}, {"isolation": 3}, {"isolation": ""}, {"read_only": "yes"}):
        for use in (txpool.transaction, txpool.transactional, txpool.begin):
            with pytest.raises(txpool.ProgrammingError, match=r"isolation is|read_only is"):
                use(**wrong)
    assert txpool.current() is None
    for propagation in ("supports", "not_supported", "never"):
        with pytest.raises(txpool.ProgrammingError, match="has no use with"):
            txpool.transactional(propagation, read_only=True)
    with pytest.raises(txpool.ProgrammingError, match="writes nothing"):
        txpool.transaction(read_only=True, transaction_id="a", record_in="b")
    with pytest.raises(txpool.ProgrammingError, match="writes nothing"):
        txpool.transactional(read_only=True, transaction_id="a", record_in="b")


def test_a_handles_own_mode_gives_way_to_the_transactions(sources: Sources) -> None:
    one = sources.open("one", pool_max_size=2)
    connection: Any = one.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = False
    with txpool.transaction(isolation="serializable", read_only=True):
        for name, value in (("isolation_level", psycopg.IsolationLevel.READ_COMMITTED), ("read_only", False)):
            with pytest.raises(txpool.ProgrammingError, match=f"{name} cannot be"):
                setattr(connection, name, value)
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        assert connection.execute(SHOW).fetchone() == ("serializable", "on")
    with txpool.transaction(read_only=True):
        assert connection.execute(SHOW).fetchone() == ("repeatable read", "on")
    assert connection.execute(SHOW).fetchone() == ("repeatable read", "off")
    connection.close()


def test_a_subordinate_begins_as_its_driver_says(sources: Sources) -> None:
    one = sources.open("one")
    with txpool.transaction(isolation="serializable", read_only=True) as tx:
        pass
    task = Subordinate(tx.gtrid, write=1, partition=0, attempt=7, characteristics=tx.characteristics)
    token = make_ambient(task)
    try:
        assert ask(one) == ("serializable", "on")
        assert task.prepare() == []
    finally:
        token.var.reset(token)
