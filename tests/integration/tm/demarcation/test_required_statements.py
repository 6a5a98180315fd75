"""transaction.required = strict: every way to execute something counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.integration.tm.demarcation.outside import plain, refused
from tests.integration.tm.demarcation.table import OneDatasource
from txpool.datasource import DataSource

on_postgresql = pytest.mark.parametrize("world", ["psycopg"], indirect=True)
on_sqlite = pytest.mark.parametrize("world", ["sqlite3"], indirect=True)


def executes(connection: Any) -> None:
    connection.execute("select 1")


def executes_many(connection: Any) -> None:
    connection.cursor().executemany("insert into t values (1)", [(), ()])


def executes_by_itself(connection: Any) -> None:
    connection.autocommit = True
    connection.execute("insert into t values (1)")


def sets_something(connection: Any) -> None:
    connection.execute("set search_path to public")


def copies(connection: Any) -> None:
    with connection.cursor().copy("copy t from stdin") as copy:
        copy.write_row([1])


def streams(connection: Any) -> None:
    list(connection.cursor().stream("insert into t values (1) returning n"))


def works_in_a_block(connection: Any) -> None:
    with connection.transaction():
        connection.execute("insert into t values (1)")


def works_in_a_pipeline(connection: Any) -> None:
    with connection.pipeline():
        connection.execute("insert into t values (1)")


def names_a_cursor(connection: Any) -> None:
    with connection.cursor("named") as cursor:
        cursor.execute("select n from t")


def prepares(connection: Any) -> None:
    connection.tpc_begin("mine")
    connection.execute("insert into t values (1)")
    connection.tpc_commit()


def executes_a_script(connection: Any) -> None:
    connection.executescript("insert into t values (1); insert into t values (2)")


def opens_a_blob(connection: Any) -> None:
    connection.blobopen("t", "n", 1)


def asks_a_pragma(connection: Any) -> None:
    connection.execute("pragma journal_mode")


@on_postgresql
@pytest.mark.parametrize(
    "work",
    [
        executes,
        executes_many,
        executes_by_itself,
        sets_something,
        copies,
        streams,
        works_in_a_block,
        works_in_a_pipeline,
        names_a_cursor,
        prepares,
    ],
)
def test_every_way_to_execute_on_postgresql(
    world: OneDatasource, strict: DataSource, work: Callable[[Any], None]
) -> None:
    with refused, plain(strict) as connection:
        work(connection)
    assert world.read() == []


@on_sqlite
@pytest.mark.parametrize("work", [executes, executes_many, executes_a_script, opens_a_blob, asks_a_pragma])
def test_every_way_to_execute_on_sqlite(world: OneDatasource, strict: DataSource, work: Callable[[Any], None]) -> None:
    with refused, plain(strict) as connection:
        work(connection)
    assert world.read() == []


@on_postgresql
def test_what_sends_nothing_is_no_statement(world: OneDatasource, strict: DataSource) -> None:
    with plain(strict) as connection:
        connection.cursor_factory = psycopg.ClientCursor
        assert connection.cursor().mogrify("select %s", ["a'b"]) == "select 'a''b'"
        assert str(connection.xid(1, "a", "b")) == "1_YQ==_Yg=="
