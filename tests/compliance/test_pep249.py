"""PEP 249, clause by clause, by each driver's connections: plain, and inside a transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool.errors
from txpool.datasource import DataSource
from txpool.tm.demarcation.calls import begin, rollback
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.support.mysql import MySQLServer

ERRORS = (
    "Warning",
    "Error",
    "InterfaceError",
    "DatabaseError",
    "DataError",
    "OperationalError",
    "IntegrityError",
    "InternalError",
    "ProgrammingError",
    "NotSupportedError",
)


@pytest.fixture(autouse=True)
def coordinator() -> Iterator[None]:
    manager = configure(node_name="tests", log_url="memory:")
    yield
    manager.close()


#: Over MariaDB.
MYSQL = ("pymysql", "mysqlclient")


@pytest.fixture(params=["psycopg", "sqlite3", *MYSQL, "jdbc"])
def datasource(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DataSource]:
    if request.param == "psycopg":
        databases: Databases = request.getfixturevalue("databases")
        where = {"mode": "xa", "url": databases.url("one"), "password": databases.server.password}
    elif request.param in MYSQL:
        request.getfixturevalue("require_driver")(request.param)
        server: MySQLServer = request.getfixturevalue("mariadb")
        server.empty()
        where = {"mode": "xa", "url": server.url("one"), "password": server.password}
    elif request.param == "sqlite3":
        where = {"mode": "local", "url": f"sqlite:///{tmp_path}/one.db"}
    if request.param == "jdbc":  # over PostgreSQL
        databases = request.getfixturevalue("databases")
        made = request.getfixturevalue("jdbc_places").open("postgresql")
    else:
        made = DataSource(name="one", driver=request.param, **where)
    with made as datasource:
        with closing(datasource.connect()) as connection:
            connection.cursor().execute("create table booze (name varchar(20) primary key, price integer)")
            connection.commit()
        yield datasource


@pytest.fixture(params=["plain", "enlisted"])
def connection(request: pytest.FixtureRequest, datasource: DataSource) -> Iterator[Any]:
    with ExitStack() as stack:
        if request.param == "enlisted":
            begin()
            stack.callback(rollback)
        connection = datasource.connect()
        stack.callback(connection.close)
        yield connection


@pytest.fixture
def filled(connection: Any) -> Any:
    cursor = connection.cursor()
    rows = [("Victoria Bitter", 1), ("XXXX", 2), ("Redback", 3)]
    cursor.executemany(f"insert into booze values ({mark(connection)}, {mark(connection)})", rows)
    cursor.execute("select name, price from booze order by price")
    return cursor


def mark(connection: Any) -> str:
    return {"pyformat": "%s", "format": "%s", "qmark": "?"}[connection.paramstyle]


def test_the_errors_are_a_tree() -> None:
    for name in ERRORS:
        error = getattr(txpool.errors, name)
        assert issubclass(error, Exception)
        if name not in ("Warning", "Error"):
            assert issubclass(error, txpool.errors.Error)
        if name not in ("Warning", "Error", "InterfaceError", "DatabaseError"):
            assert issubclass(error, txpool.errors.DatabaseError)


@pytest.mark.parametrize("name", ERRORS)
def test_a_connection_has_the_errors(connection: Any, name: str) -> None:
    assert getattr(connection, name) is getattr(txpool.errors, name)


def test_the_style_of_parameters(datasource: DataSource, connection: Any) -> None:
    assert connection.paramstyle == datasource.driver_adapter.module.paramstyle


def test_description_and_rowcount(connection: Any) -> None:
    cursor = connection.cursor()
    assert cursor.description is None
    assert cursor.rowcount == (0 if connection.datasource.driver == "mysqlclient" else -1)
    cursor.execute("insert into booze values ('Carlton', 4)")
    assert cursor.rowcount == 1
    assert cursor.description is None
    cursor.execute("select name, price from booze")
    assert [column[0] for column in cursor.description] == ["name", "price"]
    assert all(len(column) == 7 for column in cursor.description)


def test_parameters(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"insert into booze values ({mark(connection)}, {mark(connection)})", ("Coopers'", 5))
    cursor.execute(f"select name from booze where price = {mark(connection)}", (5,))
    assert [*cursor.fetchall()] == [("Coopers'",)]


def test_fetchone(filled: Any) -> None:
    assert [filled.fetchone() for _ in range(4)] == [("Victoria Bitter", 1), ("XXXX", 2), ("Redback", 3), None]


def test_fetchmany(filled: Any) -> None:
    assert filled.arraysize == 1
    assert len(filled.fetchmany()) == 1
    filled.arraysize = 2
    assert len(filled.fetchmany()) == 2
    assert [*filled.fetchmany(5)] == []
    filled.execute("select 1 union select 2 union select 3")
    assert len(filled.fetchmany(2)) == 2
    assert len(filled.fetchall()) == 1
    assert [*filled.fetchall()] == []


def test_iteration(filled: Any) -> None:
    assert next(filled) == ("Victoria Bitter", 1)
    assert [name for name, _ in filled] == ["XXXX", "Redback"]


def test_fetching_without_a_result(connection: Any, datasource: DataSource) -> None:
    cursor = connection.cursor()
    if datasource.driver == "sqlite3":  # it answers "nothing there"
        assert cursor.fetchone() is None
        assert cursor.fetchall() == []
    else:
        for fetch in (cursor.fetchone, cursor.fetchmany, cursor.fetchall):
            with pytest.raises(txpool.errors.Error):
                fetch()


def test_what_may_do_nothing(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.setinputsizes((25,))
    cursor.setoutputsize(1000)
    cursor.setoutputsize(2000, 0)
    cursor.execute("select 1")
    assert not getattr(cursor, "nextset", bool)()


def test_null(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"insert into booze values ({mark(connection)}, {mark(connection)})", ("Toohey", None))
    cursor.execute("select price from booze")
    assert cursor.fetchone() == (None,)


def test_cursors_share_their_connections_transaction(connection: Any) -> None:
    first, second = connection.cursor(), connection.cursor()
    first.execute("insert into booze values ('Boag', 6)")
    second.execute("select price from booze")
    assert [*second.fetchall()] == [(6,)]


def test_a_cursor_knows_its_connection(connection: Any) -> None:
    cursor = connection.cursor()
    assert cursor.connection is connection
    returned = cursor.execute("select 1")
    if connection.datasource.driver in MYSQL:  # whose execute() tells how many rows there are
        assert returned == 1
    else:
        assert returned.connection is connection


def test_a_closed_cursor(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.close()
    with pytest.raises(connection.Error):
        cursor.execute("select 1")


def test_a_closed_connection(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("select 1")
    connection.close()
    for use in (lambda: cursor.execute("select 1"), connection.cursor, connection.commit, connection.rollback):
        with pytest.raises(txpool.errors.Error, match="closed"):
            use()
    cursor.close()
    connection.close()


def test_errors_are_the_drivers_and_ours(connection: Any, datasource: DataSource) -> None:
    driver = datasource.driver_adapter.module
    cursor = connection.cursor()
    cursor.execute("insert into booze values ('Emu', 7)")
    with pytest.raises(driver.IntegrityError) as caught:
        cursor.execute("insert into booze values ('Emu', 7)")
    assert isinstance(caught.value, txpool.errors.IntegrityError)


def test_a_syntax_error(connection: Any, datasource: DataSource) -> None:
    with pytest.raises(txpool.errors.DatabaseError) as caught:
        connection.cursor().execute("selekt 1")
    assert isinstance(caught.value, datasource.driver_adapter.module.DatabaseError)


def test_commit_and_rollback(datasource: DataSource) -> None:
    connection = datasource.connect()
    cursor = connection.cursor()
    cursor.execute("insert into booze values ('Kept', 1)")
    connection.commit()
    cursor.execute("insert into booze values ('Lost', 1)")
    connection.rollback()
    cursor.execute("insert into booze values ('Lost too', 1)")
    connection.close()
    with closing(datasource.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("select name from booze")
        assert [*cursor.fetchall()] == [("Kept",)]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("tpc_begin", ["x"]), ("tpc_prepare", []), ("tpc_commit", ["x"]), ("tpc_rollback", ["x"]), ("tpc_recover", [])],
)
def test_two_phase_commit_belongs_to_the_transaction(datasource: DataSource, name: str, arguments: list[str]) -> None:
    for taken_before in (True, False):
        with closing(datasource.connect()) as plain:
            begin()
            try:
                connection = plain if taken_before else datasource.connect()
                if datasource.driver != "psycopg":
                    assert not hasattr(connection, name)
                else:
                    with pytest.raises(txpool.errors.NotSupportedError, match="transaction"):
                        getattr(connection, name)(*arguments)
            finally:
                rollback()


TYPES = ("STRING", "BINARY", "NUMBER", "DATETIME", "ROWID")


def test_type_objects(connection: Any, datasource: DataSource) -> None:
    cursor = connection.cursor()
    if datasource.driver in ("psycopg", "jdbc"):
        columns = "''::text, ''::varchar, ''::char(1), ''::bytea, 1::int2, 1.5::numeric, 1::float8, now(), "
        columns += "now()::timestamp, now()::date, now()::time, '1 day'::interval, 1::oid, true, '{}'::jsonb"
        kinds = ["STRING"] * 3 + ["BINARY"] + ["NUMBER"] * 3 + ["DATETIME"] * 5 + ["ROWID", None, None]
        if datasource.driver == "jdbc":
            kinds[-3] = "NUMBER"  # JDBC has no type for an oid
    elif datasource.driver in MYSQL:
        columns, kinds = "'a', 1, 1.5, 1e0, now()", ["STRING", "NUMBER", "NUMBER", "NUMBER", "DATETIME"]
    else:
        columns, kinds = "name, price", [None, None]
    cursor.execute(f"select {columns} from (select 1) as one" if kinds[0] else f"select {columns} from booze")
    for column, kind in zip(cursor.description, kinds, strict=True):
        assert [name for name in TYPES if getattr(txpool, name) == column[1]] == ([kind] if kind else [])
        assert [name for name in TYPES if column[1] != getattr(txpool, name)] == [n for n in TYPES if n != kind]


def test_type_objects_among_themselves() -> None:
    for name in TYPES:
        kind = getattr(txpool, name)
        assert [other for other in TYPES if getattr(txpool, other) == kind] == [name]
        assert kind == getattr(psycopg, name)
        assert repr(kind) == f"txpool.{name}"


def test_constructors(connection: Any) -> None:
    seconds = time.mktime((2002, 12, 25, 13, 45, 30, 0, 0, -1))
    made = txpool.Date(2002, 12, 25), txpool.Time(13, 45, 30), txpool.Timestamp(2002, 12, 25, 13, 45, 30)
    assert made == (
        txpool.DateFromTicks(seconds),
        txpool.TimeFromTicks(seconds),
        txpool.TimestampFromTicks(seconds),
    )
    one = mark(connection)
    cursor = connection.cursor()
    for value in (b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")):
        # mysqlclient takes what comes back for text, unless the statement says what it is.
        asked = f"cast({one} as binary)" if connection.datasource.driver in MYSQL else one
        cursor.execute(f"select {asked}", (txpool.Binary(value),))
        assert bytes(cursor.fetchone()[0]) == b"\x00\xff"
    for wrong in ("text", 3):
        with pytest.raises(TypeError):
            txpool.Binary(wrong)  # type: ignore[arg-type]
    if connection.datasource.driver == "psycopg":
        cursor.execute("select %s, %s, %s", made)
        assert cursor.fetchone() == made
