"""The program's own SQL that would end its transaction is not sent, and the transaction goes on and commits."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

import txpool
from txpool.datasource import DataSource
from txpool.engine import create_engine

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.part(2)

NOT_SENT = "was not sent: nothing was done, and the transaction goes on"
COMMANDS: tuple[LiteralString, ...] = (
    "commit",
    "END",
    "/*x*/ commit",
    "/* /* x */ */ -- y\ncommit and chain",
    "rollback",
    "abort work",
    "rollback and no chain",
    "prepare transaction 'x'",
    "commit prepared 'x'",
    "rollback prepared 'x'",
    "begin",
    "start transaction isolation level serializable",
    "insert into t values (9, ';'); commit",
    "select $$;$$; end; insert into t values (9, 'v')",
)
MODES = {"xa": {}, "cmr": {}, "last-resource": {}, "local": {}, "join": {"mode": "xa", "managed_commit": "join"}}


@pytest.fixture(params=MODES)
def source(request: pytest.FixtureRequest, databases: Databases) -> Any:
    databases.execute("one", "create table t (id integer primary key, v text)")
    options = {"mode": request.param} | MODES[request.param]
    with databases.datasource("one", **options) as datasource:
        if request.param == "cmr":
            datasource.xids_table().create()
        yield datasource


@pytest.fixture
def other(databases: Databases) -> Any:
    databases.execute("two", "create table t (id integer primary key, v text)")
    with databases.datasource("two") as datasource:
        yield datasource


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_both_databases_commit(source: DataSource, other: DataSource, databases: Databases, *, first: bool) -> None:
    """For each command in a transaction of its own, which leaves the connections to the next one."""
    for number, command in enumerate(COMMANDS):
        print(repr(command))
        with txpool.transaction() as transaction:
            connection = source.connect()
            if not first:
                connection.execute("insert into t values (%s, 'one')", [2 * number])
            with pytest.raises(txpool.ProgrammingError, match=NOT_SENT) as told:
                connection.execute(command)
            # A BEGIN ends nothing in PostgreSQL, and what is prepared is not this transaction's part.
            assert f"inside {transaction.gtrid}, which alone begins and ends its part there" in str(told.value)
            assert transaction.status is txpool.Status.ACTIVE
            if first:
                connection.execute("insert into t values (%s, 'one')", [2 * number])
            connection.execute("insert into t values (%s, 'two')", [2 * number + 1])
            if source.mode != "local":
                other.connect().execute("insert into t values (%s, 'v')", [number])
    count = len(COMMANDS)
    assert databases.rows("one", "select id from t order by id") == [(each,) for each in range(2 * count)]
    elsewhere = 0 if source.mode == "local" else count
    assert databases.rows("two", "select id from t order by id") == [(each,) for each in range(elsewhere)]
    assert databases.prepared() == []
    assert source.statistics().destroyed == 0


Executes = Callable[[Any], object]
WAYS: dict[str, Executes] = {
    "a cursor": lambda connection: connection.cursor().execute("commit"),
    "bytes": lambda connection: connection.execute(b"commit"),
    "by name": lambda connection: connection.cursor().execute(query="commit"),
    "prepared": lambda connection: connection.execute("commit", prepare=True),
    "binary": lambda connection: connection.execute("commit", binary=True),
    "composed": lambda connection: connection.execute(sql.SQL("{}").format(sql.SQL("commit"))),
    "many": lambda connection: connection.cursor().executemany("commit", [()]),
    "stream": lambda connection: list(connection.cursor().stream("commit")),
    "copy": lambda connection: connection.cursor().copy("commit").__enter__(),
    "a server's cursor": lambda connection: _closing(connection.cursor("named")),
    "a cursor of the client's": lambda connection: _of_class(connection, psycopg.ClientCursor).execute(
        "insert into t values (%s, %s); commit", (9, "it's")
    ),
    "raw": lambda connection: _of_class(connection, psycopg.RawCursor).execute("commit"),
    "psycopg's over it": lambda connection: psycopg.Cursor(connection).execute("commit"),
    "psycopg's of the client's over it": lambda connection: psycopg.ClientCursor(connection).execute(b"commit"),
    "psycopg's over it, many": lambda connection: psycopg.Cursor(connection).executemany("commit", [()]),
    "psycopg's over it, stream": lambda connection: list(psycopg.Cursor(connection).stream("commit")),
    "psycopg's over it, copy": lambda connection: psycopg.Cursor(connection).copy(sql.SQL("commit")).__enter__(),
    "psycopg's server's over it": lambda connection: _closing(psycopg.ServerCursor(connection, "named")),
}


def _of_class(connection: Any, factory: type) -> Any:
    connection.cursor_factory = factory
    return connection.cursor()


def _closing(cursor: Any) -> None:
    with cursor:
        cursor.execute("commit")


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_execute(postgres_source: DataSource, databases: Databases, way: str) -> None:
    with txpool.transaction():
        connection = postgres_source.connect()
        connection.execute("insert into t values (1, 'v')")
        with pytest.raises(txpool.ProgrammingError, match=NOT_SENT):
            WAYS[way](connection)
        connection.execute("insert into t values (2, 'v')")
    assert databases.rows("one", "select id from t order by id") == [(1,), (2,)]


def test_in_a_pipeline(postgres_source: DataSource, databases: Databases) -> None:
    with txpool.transaction():
        connection = postgres_source.connect()
        with connection.pipeline():
            connection.execute("insert into t values (1, 'v')")
            with pytest.raises(txpool.ProgrammingError, match=NOT_SENT):
                connection.execute("commit")
            with pytest.raises(txpool.ProgrammingError, match=NOT_SENT):
                connection.execute("rollback and chain \0 'which libpq does not send")
            connection.execute("insert into t values (2, 'v')")
    assert databases.rows("one", "select id from t order by id") == [(1,), (2,)]


def test_blocks_and_savepoints_go_on_working(postgres_source: DataSource, databases: Databases) -> None:
    with txpool.transaction():
        connection = postgres_source.connect()
        with connection.transaction():
            connection.execute("insert into t values (1, 'v')")
            with pytest.raises(txpool.ProgrammingError, match=NOT_SENT):
                connection.execute("rollback")
        with suppress(ZeroDivisionError), connection.transaction():
            connection.execute("insert into t values (2, 'v')")
            raise ZeroDivisionError
        with connection.pipeline(), connection.transaction():
            connection.execute("insert into t values (3, 'v')")
        connection.execute("savepoint a")
        connection.execute("insert into t values (4, 'v')")
        connection.execute("rollback to savepoint a")
        connection.execute("ROLLBACK WORK TO a")
        connection.execute("release a")
        connection.execute("prepare transaction as select 1")
        connection.execute("execute transaction")
        connection.execute("deallocate transaction")
        connection.execute("do $$ begin perform 1; end $$")
        connection.execute(
            "create function one() returns int language sql begin atomic select 1; end; select one() as commit"
        )
    assert databases.rows("one", "select id from t order by id") == [(1,), (3,)]


#: What ends and begins behind this is not certain: a function's body may go on behind its END.
NOT_CERTAIN = "create or replace function one() returns int language sql begin atomic select 1; end; "
ANEW: tuple[LiteralString, ...] = (
    "rollback; begin",
    "abort and chain",
    "commit; start transaction",
    "end and chain",
)


@pytest.mark.parametrize("then", ANEW)
@pytest.mark.parametrize("way", ["over", "copy"])
def test_what_may_begin_anew_unseen_is_not_sent(
    postgres_source: DataSource, databases: Databases, way: str, then: str
) -> None:
    """psycopg's own cursors and COPY show no command tags, and the connection's state is as it was."""
    with txpool.transaction():
        connection = postgres_source.connect()
        connection.execute("insert into t values (1, 'v')")
        with pytest.raises(txpool.ProgrammingError, match=r"was not sent: nothing was done, and the transaction"):
            if way == "over":
                psycopg.ClientCursor(connection).execute((NOT_CERTAIN + then).encode())
            else:
                connection.cursor().copy((NOT_CERTAIN + then).encode()).__enter__()
        psycopg.ClientCursor(connection).execute(NOT_CERTAIN.encode())
        connection.execute("insert into t values (2, 'v')")
    assert databases.rows("one", "select id from t order by id") == [(1,), (2,)]


@pytest.mark.parametrize("then", ["commit; begin", "end and chain"])
@pytest.mark.parametrize("last", ["select 1/0", "copy t to stdout"])
def test_a_commit_before_a_failure_in_one_message_is_told(
    postgres_source: DataSource, databases: Databases, then: str, last: str
) -> None:
    with pytest.raises(txpool.HeuristicCommit), txpool.transaction():
        connection = postgres_source.connect()
        connection.execute("insert into t values (1, 'v')")
        connection.execute(f"{NOT_CERTAIN}{then}; {last}".encode())
    assert databases.rows("one", "select id from t order by id") == [(1,)]


def test_outside_a_transaction_the_programs_own_sql_ends_its_own(
    postgres_source: DataSource, databases: Databases
) -> None:
    with postgres_source.connect() as connection:
        connection.execute("insert into t values (1, 'v')")
        connection.execute("commit")
        connection.execute("insert into t values (2, 'v')")
        connection.execute("rollback")
        connection.execute("begin; insert into t values (3, 'v'); end")
    assert databases.rows("one", "select id from t order by id") == [(1,), (3,)]


def test_joined_commits_go_on_working(databases: Databases) -> None:
    databases.execute("one", "create table t (id integer primary key, v text)")
    with databases.datasource("one", managed_commit="join") as source, txpool.transaction():
        connection = source.connect()
        connection.execute("insert into t values (1, 'v')")
        connection.commit()
        connection.execute("insert into t values (2, 'v')")
        with pytest.raises(txpool.ProgrammingError, match=NOT_SENT):
            connection.execute("commit")
        connection.rollback()
        connection.execute("insert into t values (3, 'v')")
        connection.commit()
    assert databases.rows("one", "select id from t order by id") == [(1,), (3,)]


# -- SQLite ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["local", "cmr", "last-resource"])
def lite(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with closing(sqlite3.connect(tmp_path / "lite.db")) as raw:
        raw.execute("create table t (id integer primary key)")
    url = f"sqlite:///{tmp_path}/lite.db"
    with DataSource(name="lite", driver="sqlite3", mode=request.param, url=url, managed_commit="join") as datasource:
        if request.param == "cmr":
            datasource.xids_table().create()
        yield datasource


def rows(lite: DataSource) -> list[Any]:
    with closing(sqlite3.connect(lite.settings.url.removeprefix("sqlite:///"))) as raw:
        return raw.execute("select id from t order by id").fetchall()


@pytest.mark.parametrize(
    "command", ["commit", "END TRANSACTION", "/* a */ rollback", ";commit", "rollback transaction a", "\ufeffcommit"]
)
def test_sqlite_goes_on(lite: DataSource, command: str) -> None:
    for number in range(2):
        with txpool.transaction():
            connection = lite.connect()
            connection.execute(f"insert into t values ({2 * number})")
            for execute in (connection.execute, connection.cursor().execute):
                with pytest.raises(txpool.ProgrammingError, match=NOT_SENT):
                    execute(command)
            with pytest.raises(txpool.ProgrammingError, match=NOT_SENT):
                connection.executemany(command, [()])
            connection.execute("savepoint a")
            connection.execute("rollback transaction to a")
            connection.execute(f"insert into t values ({2 * number + 1})")
    assert rows(lite) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("command", ["begin", "BEGIN IMMEDIATE", "/* a */ begin exclusive transaction;"])
def test_sqlite_absorbs_a_begin(lite: DataSource, command: str) -> None:
    """As Django and SQLAlchemy send one, where they begin by themselves. The transaction has begun already."""
    with suppress(ZeroDivisionError), txpool.transaction():
        lite.connect().execute(command)
        lite.connect().execute("insert into t values (1)")
        raise ZeroDivisionError
    with lite.connect() as taken_before, txpool.transaction():
        for connection in (taken_before, lite.connect()):
            connection.execute(command)
            cursor = connection.cursor()
            cursor.execute(command)
            assert cursor.description is None
        connection.execute("insert into t values (2)")
    assert rows(lite) == [(2,)]
    with closing(lite.connect()) as connection:
        connection.execute(command)
        connection.execute("insert into t values (3)")
        connection.execute("rollback")
    assert rows(lite) == [(2,)]


def test_sqlite_loses_nothing_behind_a_begin(lite: DataSource) -> None:
    """Nor does it execute that: sqlite3 takes one statement at a time."""
    with txpool.transaction():
        connection = lite.connect()
        for command in ("begin; insert into t values (1)", "begin;;\n-- a\ninsert into t values (1)"):
            with pytest.raises(sqlite3.ProgrammingError, match="one statement at a time"):
                connection.execute(command)
        connection.execute("begin; -- a")
        connection.execute("insert into t values (2)")
    assert rows(lite) == [(2,)]


def test_sqlalchemys_own_begin(lite: DataSource) -> None:
    """As its pages advise for SQLite: each of its transactions sends BEGIN."""
    engine = create_engine(lite)

    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        if txpool.current() is None:  # a transaction lets nobody choose how it begins
            connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    with txpool.transaction():
        with engine.begin() as connection:
            connection.execute(sa.text("insert into t values (1)"))
        with suppress(ZeroDivisionError), engine.begin() as connection:
            connection.execute(sa.text("insert into t values (2)"))
            raise ZeroDivisionError
        with engine.begin() as connection, connection.begin_nested():
            connection.execute(sa.text("insert into t values (3)"))
    with engine.begin() as connection:
        connection.execute(sa.text("insert into t values (4)"))
    with suppress(ZeroDivisionError), engine.begin() as connection:
        connection.execute(sa.text("insert into t values (5)"))
        raise ZeroDivisionError
    assert rows(lite) == [(1,), (3,), (4,)]
