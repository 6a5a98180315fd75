"""Statements and results, as PEP 249 has them, and errors, on each database."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Databases
from tests.support.jdbc import DATABASES, Jars, JdbcDatabase, postgresql
from txpool import errors as own
from txpool.demo.server import EmbeddedPostgres
from txpool.resources.jdbc.dbapi import errors, module
from txpool.resources.jdbc.dbapi.connection import JdbcConnection

#: More than come with a statement's answer, and more than one block has.
MANY = 12_345


def failure(work: Callable[[], object]) -> errors.Error:
    with pytest.raises(errors.Error) as caught:
        work()
    return caught.value


@pytest.mark.parametrize("jdbc_database", DATABASES, indirect=True)
def test_results(jdbc_database: JdbcDatabase) -> None:
    raw = jdbc_database.connect()
    cursor = raw.execute("create table t (i int primary key, s varchar(2000), n numeric(10, 2))")
    assert cursor.description is None
    raw.commit()
    rows = [(i, f"value {i}" if i % 3 else None, None) for i in range(MANY)]
    cursor.executemany("insert into t values (?, ?, ?)", iter(rows))
    assert cursor.rowcount == MANY
    raw.commit()
    assert not raw.in_transaction
    cursor.execute("select i, s, n from t order by i")
    assert raw.in_transaction
    assert cursor.rowcount == -1
    assert [each[0].lower() for each in cursor.description or ()] == ["i", "s", "n"]
    number, text, numeric = (each[1] for each in cursor.description or ())
    assert module.NUMBER == number == "INTEGER"
    assert text == module.STRING
    assert numeric == module.NUMBER
    assert [each[4:6] for each in cursor.description or ()] == [(None, None), (None, None), (10, 2)]
    assert cursor.fetchone() == rows[0]
    assert cursor.fetchmany() == rows[1:2]
    assert cursor.fetchmany(7000) == rows[2:7002]
    assert next(cursor) == rows[7002]
    assert cursor.fetchall() == rows[7003:]
    assert cursor.fetchone() is None
    assert cursor.fetchall() == []
    assert cursor.rowcount == -1
    assert raw.execute("select i from t where i < ?", (3,)).rowcount == 3
    assert raw.execute("update t set s = 'x' where i < ?", (10,)).rowcount == 10
    raw.rollback()
    assert raw.execute("select count(*) from t where s = 'x'").fetchall() == [(0,)]
    abandoned = [raw.execute("select i from t order by i") for _ in range(200)]
    assert [next(each) for each in abandoned] == [(0,)] * 200
    del abandoned
    assert raw.execute("select max(i) from t").fetchall() == [(MANY - 1,)]
    raw.close()


@pytest.mark.parametrize("jdbc_database", DATABASES, indirect=True)
def test_errors(jdbc_database: JdbcDatabase, capfd: pytest.CaptureFixture[str]) -> None:
    raw = jdbc_database.connect()
    raw.autocommit = True
    raw.execute("create table t (i int not null primary key, v varchar(3), d date)")
    raw.execute("insert into t values (1, 'a', null)")
    cursor = raw.cursor()
    cases: list[tuple[type[own.Error], Callable[[], object]]] = [
        (own.IntegrityError, lambda: cursor.execute("insert into t values (1, 'b', null)")),
        (own.IntegrityError, lambda: cursor.execute("insert into t values (?, ?, ?)", (None, "b", None))),
        (own.ProgrammingError, lambda: cursor.execute("selectx")),
        (own.ProgrammingError, lambda: cursor.execute("select * from missing")),
        (own.DataError, lambda: cursor.execute("insert into t values (2, 'too long', null)")),
        (own.ProgrammingError, lambda: cursor.execute("select i from t where i = ? and i = ?", (1,))),
        (own.ProgrammingError, lambda: cursor.execute("select i from t where i = ?", (1, 2))),
        (own.ProgrammingError, lambda: cursor.execute("select i from t where i = ?", "1")),
        (own.ProgrammingError, lambda: cursor.executemany("insert into t values (?, 'b', null)", [(3,), (4, 5)])),
        (own.ProgrammingError, lambda: cursor.execute("update t set v = 'c'").fetchone()),
    ]
    for number, (kind, work) in enumerate(cases):
        error = failure(work)
        assert isinstance(error, kind), (number, type(error), error, error.sqlstate)
        assert error.__cause__ is None
        assert error.__context__ is None, "a Java object would be on it"
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    error = failure(cases[0][1])
    assert error.sqlstate.startswith("23")
    assert error.java_class.startswith(("org.", "java.sql."))
    assert (error.vendor_code != 0) is (jdbc_database.name != "postgresql")
    assert not raw.lost
    assert raw.execute("select i, v from t").fetchall() == [(1, "c")]
    raw.close()
    for late in (raw.commit, raw.cursor, raw.cancel, raw.ping, cursor.fetchone, lambda: cursor.execute("select 1")):
        assert isinstance(failure(late), own.InterfaceError)
    raw.close()
    assert capfd.readouterr() == ("", ""), "no driver prints what is raised"


@pytest.mark.parametrize("jdbc_database", DATABASES, indirect=True)
def test_a_batch_that_fails_says_why_and_where(jdbc_database: JdbcDatabase) -> None:
    raw = jdbc_database.connect()
    raw.execute("create table t (i int not null primary key)")
    raw.commit()
    rows = [(i,) for i in range(5000)]
    rows[4500] = (7,)
    error = failure(lambda: raw.cursor().executemany("insert into t values (?)", rows))
    assert isinstance(error, errors.IntegrityError), error
    # All but PostgreSQL's driver tell which.
    (note,) = error.__notes__
    assert note in ("set of parameters number 4500", "among the sets of parameters number 4096 to 4999")
    assert raw.failed is error
    raw.rollback()
    assert raw.execute("select * from t").fetchall() == []


@pytest.mark.parametrize("jdbc_database", ["mariadb", "h2", "derby", "postgresql"], indirect=True)
def test_the_number_of_a_new_row(jdbc_database: JdbcDatabase) -> None:
    raw = jdbc_database.connect()
    kind = "int auto_increment" if jdbc_database.name == "mariadb" else "int generated by default as identity"
    raw.execute(f"create table t (i {kind} primary key, v int)")
    expected = None if jdbc_database.name == "postgresql" else 1  # whose driver would fetch the whole row
    assert raw.execute("/* a */ insert into t (v) values (5)").lastrowid == expected
    assert raw.execute("select * from t").lastrowid is None
    assert raw.execute("insert into t (v) values (?)", (6,)).lastrowid == (expected and 2)


SLEEP = {
    "postgresql": "select pg_sleep(60)",
    "mariadb": "select sleep(60)",
    "h2": "select sum(a.x * b.x) from system_range(1, 1000000) a, system_range(1, 1000000) b",
}


@pytest.mark.parametrize("jdbc_database", list(SLEEP), indirect=True)
def test_cancel_and_time_limit(jdbc_database: JdbcDatabase) -> None:
    raw = jdbc_database.connect()
    started = threading.Event()

    def cancel() -> None:
        started.wait()
        while started.is_set():
            time.sleep(0.05)
            raw.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    started.set()
    try:
        try:  # MariaDB's sleep() returns 1 where it is killed
            assert raw.execute(SLEEP[jdbc_database.name]).fetchall() == [(1,)]
        except errors.StatementCancelled:
            assert raw.failed is not None
    finally:
        started.clear()
        thread.join()
    raw.rollback()
    raw.query_timeout = 0.5
    error = failure(lambda: raw.execute(SLEEP[jdbc_database.name]))
    assert isinstance(error, errors.StatementTimeout | errors.StatementCancelled), error
    raw.reset()
    assert raw.query_timeout is None
    assert raw.execute("select 1").fetchall() == [(1,)]


@pytest.mark.parametrize("jdbc_database", ["postgresql", "mariadb"], indirect=True)
def test_a_lost_connection(jdbc_database: JdbcDatabase, request: pytest.FixtureRequest) -> None:
    raw, other = jdbc_database.connect(), jdbc_database.connect()
    other.autocommit = True
    raw.ping(5)
    is_mariadb = jdbc_database.name == "mariadb"
    ((number,),) = raw.execute("select connection_id()" if is_mariadb else "select pg_backend_pid()").fetchall()
    other.execute(f"kill {number}" if is_mariadb else f"select pg_terminate_backend({number}, 5000)")
    error = failure(lambda: raw.execute("select 1"))
    assert isinstance(error, errors.ConnectionLost), (error, error.sqlstate)
    assert raw.lost
    assert isinstance(failure(raw.ping), errors.OperationalError)
    raw.close()
    slow = jdbc_database.connect()
    slow.set_network_timeout(0.5)
    sleep = SLEEP[jdbc_database.name]
    assert isinstance(failure(lambda: slow.execute(sleep)), errors.ConnectionLost)
    slow.abort()
    assert slow.lost
    other.abort()


def test_several_results(databases: Databases, jdbc_jars: Jars, postgres: EmbeddedPostgres) -> None:
    raw = postgresql(jdbc_jars, postgres).connect()
    cursor = raw.execute("create table t (i int); insert into t values (1), (2); select * from t; select 3, 4")
    assert (cursor.rowcount, cursor.description) == (0, None)
    assert cursor.nextset()
    assert cursor.rowcount == 2
    assert cursor.nextset()
    assert cursor.fetchall() == [(1,), (2,)]
    assert cursor.nextset()
    assert cursor.fetchall() == [(3, 4)]
    assert cursor.nextset() is None
    assert isinstance(failure(cursor.fetchall), own.ProgrammingError)
    # Without parameters a ? is none, as with psycopg.
    assert raw.execute("select '{\"a\": 1}'::jsonb ? 'a', '?'").fetchall() == [(True, "?")]


def test_rows_larger_than_the_buffer(databases: Databases, jdbc_jars: Jars, postgres: EmbeddedPostgres) -> None:
    raw = postgresql(jdbc_jars, postgres).connect()
    raw.execute("create table t (i int, b bytea, s text)")
    rows: list[tuple[Any, ...]] = [(i, bytes([i]) * 3_000_000, chr(97 + i) * 3_000_000) for i in range(4)]
    raw.cursor().executemany("insert into t values (?, ?, ?)", rows)
    assert raw.execute("select * from t order by i").fetchall() == rows
    assert raw.execute("select ?::text", ("ü" * 5_000_000,)).fetchall() == [("ü" * 5_000_000,)]


def test_threads_share_a_connection_statement_by_statement(jdbc_jars: Jars, databases: Databases) -> None:
    raw = postgresql(jdbc_jars, databases.server).connect()
    wrong: list[object] = []

    def work(number: int) -> None:
        for each in range(100):
            value = f"{number} {each}" * 100
            found = raw.execute("select ?::int, ?::text", (each, value)).fetchall()
            if found != [(each, value)]:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_transactions_and_modes(jdbc_jars: Jars, databases: Databases) -> None:
    database = postgresql(jdbc_jars, databases.server)
    with database.connect() as raw:
        assert not raw.autocommit
        raw.execute("create table t (i int)")
    assert raw.closed
    with pytest.raises(ZeroDivisionError), database.connect() as raw:
        raw.execute("insert into t values (1)")
        raise ZeroDivisionError
    raw = database.connect()
    assert raw.execute("select * from t").fetchall() == []
    raw.rollback()
    former = raw.isolation
    raw.isolation, raw.read_only = 8, True
    assert raw.execute("show transaction_isolation").fetchall() == [("serializable",)]
    assert isinstance(failure(lambda: raw.execute("insert into t values (1)")), errors.InternalError)
    raw.rollback()
    raw.autocommit = True
    raw.reset()
    assert (raw.isolation, raw.read_only, raw.autocommit, raw.in_transaction) == (former, False, False, False)
    raw.execute("insert into t values (1)")
    raw.close()
    assert databases.rows("one", "select * from t") == []


def test_what_the_driver_is_told_of_a_users_statements(jdbc_jars: Jars, databases: Databases) -> None:
    raw: JdbcConnection = postgresql(jdbc_jars, databases.server).connect()
    raw.run("select 1")
    assert (raw.used, raw.failed) == (False, None)
    failure(lambda: raw.run("select x"))
    assert (raw.used, raw.failed) == (False, None)
    raw.rollback()
    first = failure(lambda: raw.execute("select x"))
    failure(lambda: raw.execute("select y"))
    assert raw.used
    assert raw.failed is first


def test_the_network_timeout_ends_with_a_reset(jdbc_jars: Jars, databases: Databases) -> None:
    raw = postgresql(jdbc_jars, databases.server).connect(SocketTimeout=77)
    raw.set_network_timeout(5)
    raw.set_network_timeout(6)
    assert raw.java.getNetworkTimeout() == 6000
    raw.reset()
    assert raw.java.getNetworkTimeout() == 77000


@pytest.mark.parametrize("jdbc_database", ["h2"], indirect=True)
@pytest.mark.parametrize("statement", [b"select 1", None, 5])
def test_a_statement_is_a_text(jdbc_database: JdbcDatabase, statement: Any) -> None:
    raw = jdbc_database.connect()
    assert raw.gives_keys
    with pytest.raises(errors.ProgrammingError, match="a statement is a str"):
        raw.execute(statement)
    raw.close()
