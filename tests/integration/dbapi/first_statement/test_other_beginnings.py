"""A transaction that begins by something else than a single statement, or after something has come."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from tests.integration.dbapi.first_statement.messages import INSERT, INTRANS, First
from txpool.datasource import DataSource
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


def copy(connection: Any) -> None:
    with connection.cursor().copy("copy t from stdin") as rows:
        rows.write_row((1, "v"))


def block(connection: Any) -> None:
    with connection.transaction():
        connection.execute(INSERT, (1, "v"))


def pipeline(connection: Any) -> None:
    with connection.pipeline():
        connection.execute(INSERT, (1, "v"))


def server_cursor(connection: Any) -> None:
    with connection.cursor("c") as cursor:
        cursor.execute("select 1 as id")
        assert cursor.fetchall() == [(1,)]
    connection.execute(INSERT, (1, "v"))


def client_cursor(connection: Any) -> None:
    connection.cursor_factory = psycopg.ClientCursor
    connection.execute(INSERT, (1, "v"))


def raw_cursor(connection: Any) -> None:
    connection.cursor_factory = psycopg.RawCursor
    connection.execute("insert into t values ($1, $2)", (1, "v"))
    connection.cursor_factory = psycopg.Cursor


@pytest.mark.parametrize(
    "first",
    [
        lambda connection: connection.cursor().executemany(INSERT, [(1, "v")]),
        lambda connection: list(connection.cursor().stream("insert into t values (1, 'v') returning id")),
        lambda connection: connection.execute(sql.SQL(INSERT), (1, "v")),
        lambda connection: connection.execute("insert into t values (1, 'v'); select 1"),
        lambda connection: connection.execute("insert into t values (1, $$v$$)"),
        lambda connection: connection.execute("create table if not exists t (id integer); " + INSERT % (1, "'v'")),
        lambda connection: connection.execute("insert into t values (1, 'v') returning id", binary=True),
        copy, block, pipeline, server_cursor, client_cursor, raw_cursor,
    ],
)  # fmt: skip
def test_other_beginnings(postgres_source: DataSource, databases: Databases, first: First) -> None:
    with transaction(), postgres_source.connect() as connection:
        first(connection)
        assert connection.info.transaction_status is INTRANS
        connection.execute(INSERT, (2, "w"))
    assert databases.rows("one", "select id from t order by id") == [(1,), (2,)]


def test_a_session_s_lock_is_noted(postgres_source: DataSource) -> None:
    with transaction(), postgres_source.connect() as connection:
        connection.execute("select pg_advisory_lock(%s)", (7,), prepare=True)
    with transaction(), postgres_source.connect() as connection:
        mine = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        assert connection.execute(mine).fetchone() == (0,)


def test_the_transaction_s_own_modes(postgres_source: DataSource) -> None:
    with transaction(isolation="serializable"), postgres_source.connect() as connection:
        assert connection.execute("select current_setting('transaction_isolation')").fetchone() == ("serializable",)
    with transaction(), postgres_source.connect() as connection:
        connection.read_only = True
        assert connection.execute("select current_setting('transaction_read_only')").fetchone() == ("on",)


def test_what_comes_between(postgres_source: DataSource, databases: Databases) -> None:
    """A label, and the savepoint of a connection that joins, have their BEGIN before them, and there is no other."""
    notices: list[str | None] = []
    with databases.datasource("one", "two", managed_commit="join") as joining:
        for datasource in (postgres_source, joining):
            with transaction() as tx, datasource.connect() as connection:
                tx.label = "" if datasource is joining else "a job"
                connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
                (name,) = connection.execute("select current_setting('application_name')").fetchone()
                assert name == tx.label
    assert notices == []


def test_a_notification_that_has_come_before(databases: Databases) -> None:
    """As psycopg's, it is told in the first statement: no later one may come. What its handler raises ends nothing."""
    databases.execute("one", "create table t (id integer primary key, v text)")
    url, password = databases.url("one"), databases.server.password
    options: dict[str, Any] = {"url": url, "password": password, "pool_initial_sql": "listen news", "pool_max_size": 1}
    heard: list[str] = []

    def hear(notify: psycopg.Notify) -> None:
        heard.append(notify.payload)
        if notify.payload == "bad":
            raise LookupError

    with DataSource(name="one", driver="psycopg", **options) as datasource:
        for number, (news, size) in enumerate([("good", 1), ("good", 20_000_000), ("bad", 1)]):
            with transaction(), datasource.connect() as connection:
                connection.add_notify_handler(hear)
                databases.rows("one", "select pg_notify('news', %s)", (news,))
                with pytest.raises(LookupError) if news == "bad" else nullcontext():
                    connection.execute(INSERT, (number, "v" * size))
                assert connection.info.transaction_status is INTRANS
    assert heard == ["good", "good", "bad"]
    assert databases.rows("one", "select id from t order by id") == [(0,), (1,), (2,)]
