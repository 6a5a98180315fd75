"""What psycopg's own tests have shown to be missing: each of it as psycopg has it."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.copy import QueuedLibpqWriter
from psycopg.types.string import TextLoader

from tests.integration.dbapi.table import rows
from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases


def test_a_pickled_error_keeps_its_diagnosis(postgres_source: DataSource) -> None:
    with postgres_source.connect() as connection, pytest.raises(psycopg.errors.UndefinedTable) as caught:
        connection.execute("select from nowhere")
    error = caught.value
    for _ in range(2):  # it may travel on
        error = pickle.loads(pickle.dumps(error))
        assert isinstance(error, psycopg.errors.UndefinedTable)
        assert isinstance(error, ProgrammingError)
        assert error.diag.sqlstate == "42P01"
        assert error.diag.message_primary == caught.value.diag.message_primary
        assert error.pgresult is None


def test_a_connection_that_is_closed_while_it_executes_is_dropped_at_once(databases: Databases) -> None:
    options = {"url": databases.url("one"), "password": databases.server.password, "pool_check_timeout": "1h"}
    with DataSource(name="one", driver="psycopg", **options) as datasource:
        connection: Any = datasource.connect()
        pid = connection.info.backend_pid
        for _ in connection.cursor().stream("select generate_series(1, 1000000)"):
            connection.close()  # a rollback would wait for the stream, which waits for us
            break
        with datasource.connect() as another:
            assert another.info.backend_pid != pid


def test_rollback_ends_what_has_failed_in_a_pipeline(postgres_source: DataSource) -> None:
    with postgres_source.connect() as connection:
        connection.autocommit = True
        with connection.pipeline():
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute("select 1 / %s", [0]).fetchone()
            connection.rollback()
            assert connection.execute("select 1 / %s", [1]).fetchone() == (1,)


def test_a_connection_takes_any_attribute(postgres_source: DataSource) -> None:
    with postgres_source.connect() as connection:
        connection.note = "mine"
        assert connection.note == "mine"
    with postgres_source.connect() as connection, pytest.raises(AttributeError, match="note"):
        _ = connection.note  # another handle, though on the same session


@pytest.mark.parametrize("enlisted", [False, True])
def test_a_statement_by_psycopgs_name_for_it(postgres_source: DataSource, enlisted: bool) -> None:
    with transaction() if enlisted else nullcontext(), postgres_source.connect() as connection:
        cursor = connection.cursor()
        assert cursor.execute(query="select %s::int", params=(1,)).fetchone() == (1,)
        assert connection.execute(query="select 2").fetchone() == (2,)
        cursor.executemany(query="select %s::int", params_seq=[(3,), (4,)], returning=True)
        assert cursor.fetchone() == (3,)
        for wrong in ({}, {"operation": "select 5"}):
            with pytest.raises(TypeError, match="'query'"):
                cursor.execute(**wrong)
        with pytest.raises(TypeError, match="multiple values for argument 'query'"):
            cursor.execute("select 6", query="select 7")
        assert cursor.execute("select 8").fetchone() == (8,)


@pytest.mark.parametrize("enlisted", [False, True])
@pytest.mark.parametrize("statement", [5, None])
def test_what_is_no_statement(postgres_source: DataSource, enlisted: bool, statement: Any) -> None:
    with transaction() if enlisted else nullcontext(), postgres_source.connect() as connection:
        for execute in (connection.execute, connection.cursor().execute):
            with pytest.raises(TypeError, match="expected bytes"):
                execute(statement)
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize("enlisted", [False, True])
def test_copy_through_a_writer_of_the_users_own(postgres_source: DataSource, enlisted: bool) -> None:
    connection: Any = postgres_source.connect()
    cursor = connection.cursor()
    writer = QueuedLibpqWriter(cursor)
    if enlisted:
        with transaction(), cursor.copy("copy t from stdin", writer=writer) as copy:
            assert copy.writer is writer
            copy.write_row((1, "a"))
    else:
        with cursor.copy("copy t from stdin", writer=writer) as copy:
            assert copy.writer is writer
            copy.write_row((1, "a"))
        connection.commit()
    assert cursor.rowcount == 1
    connection.close()
    assert rows(postgres_source) == [(1, "a")]


def test_a_connection_and_its_cursors_show_the_sessions_state(postgres_source: DataSource) -> None:
    connection: Any = postgres_source.connect()
    assert repr(connection) == "<txpool connection to one, plain [IDLE]>"
    cursor = connection.execute("select 1")
    assert repr(connection) == "<txpool connection to one, plain [INTRANS]>"
    assert "psycopg.Cursor [TUPLES_OK] [INTRANS]" in repr(cursor)
    with cursor.copy("copy (select 1) to stdout") as copy:
        assert "[ACTIVE]" in repr(copy)
    connection.close()
    assert "[BAD]" in repr(connection)
    with transaction():
        assert repr(postgres_source.connect()).endswith("[IDLE]>")


def test_adapters_are_those_of_a_context(postgres_source: DataSource) -> None:
    with postgres_source.connect() as other:
        other.adapters.register_loader("int4", TextLoader)
        with postgres_source.connect() as connection:
            connection.use_adapters(other)
            assert connection.execute("select 1").fetchone() == ("1",)
    with postgres_source.connect() as connection:
        assert connection.execute("select 1").fetchone() == (1,)
