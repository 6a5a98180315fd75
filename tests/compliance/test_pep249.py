"""PEP 249, clause by clause, by both drivers' connections: plain, and inside a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool.errors
from txpool.datasource import DataSource
from txpool.tm.demarcation import begin, rollback
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from tests.conftest import Databases

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


@pytest.fixture(params=["psycopg", "sqlite3"])
def datasource(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DataSource]:
    if request.param == "psycopg":
        databases: Databases = request.getfixturevalue("databases")
        where = {"mode": "xa", "url": databases.url("one"), "password": databases.server.password}
    else:
        where = {"mode": "local", "url": f"sqlite:///{tmp_path}/one.db"}
    with DataSource(name="one", driver=request.param, **where) as datasource:
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
    return {"pyformat": "%s", "qmark": "?"}[connection.paramstyle]


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
    assert cursor.rowcount == -1
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
    assert cursor.fetchall() == [("Coopers'",)]


def test_fetchone(filled: Any) -> None:
    assert [filled.fetchone() for _ in range(4)] == [("Victoria Bitter", 1), ("XXXX", 2), ("Redback", 3), None]


def test_fetchmany(filled: Any) -> None:
    assert filled.arraysize == 1
    assert len(filled.fetchmany()) == 1
    filled.arraysize = 2
    assert len(filled.fetchmany()) == 2
    assert filled.fetchmany(5) == []
    filled.execute("select 1 union select 2 union select 3")
    assert len(filled.fetchmany(2)) == 2
    assert len(filled.fetchall()) == 1
    assert filled.fetchall() == []


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
    assert not cursor.nextset()


def test_null(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"insert into booze values ({mark(connection)}, {mark(connection)})", ("Toohey", None))
    assert cursor.execute("select price from booze").fetchone() == (None,)


def test_cursors_share_their_connections_transaction(connection: Any) -> None:
    first, second = connection.cursor(), connection.cursor()
    first.execute("insert into booze values ('Boag', 6)")
    assert second.execute("select price from booze").fetchall() == [(6,)]


def test_a_cursor_knows_its_connection(connection: Any) -> None:
    cursor = connection.cursor()
    assert cursor.connection is connection
    assert cursor.execute("select 1").connection is connection


def test_a_closed_cursor(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.close()
    with pytest.raises(connection.Error):
        cursor.execute("select 1")


def test_a_closed_connection(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("select 1")
    connection.close()
    for use in (cursor.fetchone, cursor.fetchall, lambda: cursor.execute("select 1"), connection.cursor):
        with pytest.raises(txpool.errors.InterfaceError, match="closed"):
            use()
    for use in (connection.commit, connection.rollback):
        with pytest.raises(txpool.errors.InterfaceError, match="closed"):
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
        assert connection.cursor().execute("select name from booze").fetchall() == [("Kept",)]


@pytest.mark.parametrize("name", ["tpc_begin", "tpc_prepare", "tpc_commit", "tpc_rollback", "tpc_recover"])
def test_two_phase_commit_belongs_to_the_transaction(connection: Any, name: str) -> None:
    with pytest.raises(txpool.errors.NotSupportedError, match="transaction"):
        getattr(connection, name)()
