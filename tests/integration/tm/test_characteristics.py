"""Isolation level and read-only of a datasource: what begins so, and what the database refuses."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest

import txpool
from tests.integration.tm.characteristics import LEVELS, SHOW, Sources, ask, write
from txpool.errors import ConfigurationError


@pytest.mark.parametrize("level", LEVELS)
def test_each_local_transaction_of_a_datasource_begins_so(sources: Sources, level: str) -> None:
    source = sources.open("one", transaction_isolation=level, transaction_read_only=True)
    begun = (level.replace("-", " "), "on")
    assert ask(source) == begun
    with txpool.transaction():
        assert ask(source) == begun
    for leave in (dirty, set_by_sql, set_on_the_handle, in_autocommit):
        with closing(source.connect()) as connection:
            leave(connection)
        assert ask(source) == begun, leave
        with txpool.transaction():
            assert ask(source) == begun, leave
    assert source.statistics().reset_failures == 0
    assert source.statistics().created == 1


def dirty(connection: Any) -> None:
    connection.execute("select 1")


def set_by_sql(connection: Any) -> None:
    connection.execute("set session characteristics as transaction isolation level read committed, read write")
    connection.commit()


def set_on_the_handle(connection: Any) -> None:
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.read_only = False
    assert connection.execute(SHOW).fetchone() == ("read committed", "off")


def in_autocommit(connection: Any) -> None:
    connection.autocommit = True
    isolation, read_only = connection.execute(SHOW).fetchone()
    assert read_only == "on"
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.execute("update t set n = 9")
    connection.execute("begin")
    assert connection.execute(SHOW).fetchone() == (isolation, "on")


def test_a_datasource_without_a_word_begins_as_its_database_has_it(sources: Sources) -> None:
    source = sources.open("one")
    sources.databases.execute("two", "alter database one set default_transaction_isolation = 'serializable'")
    assert ask(source) == ("serializable", "off")
    sources.databases.execute("two", "alter database one reset default_transaction_isolation")


@pytest.mark.parametrize("enlisted", [False, True])
def test_the_server_refuses_what_a_read_only_datasource_would_write(sources: Sources, enlisted: bool) -> None:
    source = sources.open("one", transaction_read_only=True)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as caught:
        if enlisted:
            with txpool.transaction():
                write(source)
        else:
            write(source)
    assert isinstance(caught.value, txpool.Error)
    assert sources.databases.rows("one", "select n from t where id = 1") == [(0,)]


def test_two_serializable_transactions_of_a_datasource_conflict_and_read_committed_ones_do_not(
    sources: Sources,
) -> None:
    for level in ("serializable", "read-committed"):
        source = sources.open(f"s-{level[:4]}", "one", transaction_isolation=level, pool_max_size=2)
        with closing(source.connect()) as first, closing(source.connect()) as second:
            assert write_skew(first, second) == (level == "serializable")


def write_skew(first: Any, second: Any) -> bool:
    """Two transactions each read what the other writes; whether one of them is refused for that."""
    for connection, number in ((first, 1), (second, 2)):
        connection.execute("select sum(n) from t").fetchone()
        connection.execute("update t set n = n + 1 where id = %s", (number,))
    first.commit()
    try:
        second.commit()
    except psycopg.errors.SerializationFailure:
        return True
    return False


@pytest.mark.parametrize("mode", ["local", "cmr"])
def test_sqlite_refuses_what_a_read_only_datasource_would_write(sources: Sources, mode: str) -> None:
    source = sources.open_lite(mode, transaction_read_only=True, transaction_isolation="serializable")
    for _ in range(2):
        for statement in ("update t set n = 7", "create table u (n)", "create temp table u (n)", "delete from t"):
            with pytest.raises(sqlite3.OperationalError, match="readonly"), closing(source.connect()) as connection:
                connection.execute(statement)
            with pytest.raises(sqlite3.OperationalError, match="readonly"), txpool.transaction():
                source.connect().execute(statement)
        for way in ("pragma query_only = off", "PRAGMA\nmain . Query_Only(0)", 'pragma "query_only" = 0'):
            with closing(source.connect()) as connection:
                for execute in (connection.execute, connection.executescript):
                    with pytest.raises(txpool.ProgrammingError, match="read-only here"):
                        execute(way)
            with pytest.raises(txpool.ProgrammingError, match="read-only here"), txpool.transaction():
                source.connect().execute(way)
        with closing(source.connect()) as connection:
            assert connection.execute("pragma query_only").fetchone() == (1,)
            connection.execute("pragma cache_size = 7")  # it is opened anew for the next
    assert ask(source, "select n from t where id = 1") == (0,)


def test_a_read_only_reader_in_sqlite_waits_for_no_writer(sources: Sources) -> None:
    source = sources.open_lite(transaction_read_only=True, driver_timeout="0")
    with closing(sqlite3.connect(sources.file, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        with txpool.transaction():
            assert ask(source, "select n from t where id = 1") == (0,)


@pytest.mark.parametrize("level", ["read-uncommitted", "read-committed", "repeatable-read"])
def test_sqlite_has_no_other_level(sources: Sources, level: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"transaction\.isolation.*serializable.*{level}"):
        sources.open_lite(transaction_isolation=level)


def test_what_is_no_level(sources: Sources) -> None:
    with pytest.raises(ConfigurationError, match=r"transaction\.isolation.*serializable"):
        sources.open("one", transaction_isolation="snapshot")
    with pytest.raises(ConfigurationError, match=r"transaction\.read-only"):
        sources.open("one", transaction_read_only="perhaps")
