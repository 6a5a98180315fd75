"""psycopg's tpc_*() on a plain connection: the server's answer counts, and nothing goes to the next user."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool.errors
from tests.integration.dbapi.table import rows
from txpool.datasource import DataSource
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

INSERT = "insert into t values (1, 'x')"


@pytest.fixture
def connection(postgres_source: DataSource) -> Any:
    postgres_source.pool.resize(0, 1)
    connection = postgres_source.connect()
    yield connection
    connection.close()


def prepare(connection: Any, name: str = "mine") -> None:
    connection.tpc_begin(name)
    connection.execute(INSERT)
    connection.tpc_prepare()


def assert_idle(connection: Any) -> None:
    """Nothing is open on it, for psycopg neither, and it can be used."""
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    connection.commit()
    connection.rollback()
    connection.autocommit = True
    connection.autocommit = False
    connection.tpc_begin("another")
    connection.tpc_rollback()


def test_its_states(connection: Any, databases: Databases) -> None:
    xid = connection.xid(1, "gtrid", "bqual")
    connection.tpc_begin(xid)
    connection.execute(INSERT)
    for end in (connection.commit, connection.rollback, lambda: connection.tpc_begin("x")):
        with pytest.raises(psycopg.ProgrammingError) as caught:
            end()
        assert isinstance(caught.value, txpool.errors.ProgrammingError)
    assert "in the two-phase transaction '1_Z3RyaWQ=_YnF1YWw='" in repr(connection)
    connection.tpc_prepare()
    assert databases.prepared() == [str(xid)]
    assert "prepared '1_Z3RyaWQ=_YnF1YWw='" in repr(connection)
    for end in (connection.commit, connection.rollback, connection.tpc_prepare, connection.cancel):
        with pytest.raises(psycopg.ProgrammingError):
            end()
    connection.tpc_commit()
    assert databases.prepared() == []
    assert databases.rows("one", "select id from t") == [(1,)]
    assert_idle(connection)


@pytest.mark.parametrize("pipeline", [False, True])
def test_without_and_after_prepare(connection: Any, databases: Databases, *, pipeline: bool) -> None:
    def in_mode(work: Callable[[], None]) -> None:
        if pipeline:
            with connection.pipeline():
                work()
        else:
            work()

    def one_phase() -> None:
        connection.tpc_begin("mine")
        connection.execute(INSERT)
        connection.tpc_commit()

    def undone() -> None:
        connection.tpc_begin("mine")
        connection.execute("insert into t values (2)")
        connection.tpc_rollback()

    def undone_after() -> None:
        prepare(connection)
        assert databases.prepared() == ["mine"]
        connection.tpc_rollback()

    in_mode(one_phase)
    in_mode(undone)
    databases.execute("one", "delete from t where id = 1")
    in_mode(undone_after)
    assert databases.rows("one", "select id from t") == []
    assert_idle(connection)


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("spoil", ["select 1/0", "commit", "rollback"])
def test_no_false_yes(connection: Any, databases: Databases, spoil: str, *, pipeline: bool) -> None:
    connection.tpc_begin("mine")
    connection.execute(INSERT)
    expected: type[Exception] = psycopg.errors.NoActiveSqlTransaction
    if spoil == "select 1/0":
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute(spoil)
        expected = psycopg.errors.InFailedSqlTransaction
    else:
        connection.execute(spoil)
    if pipeline:
        with pytest.raises(expected), connection.pipeline():
            connection.tpc_prepare()
    else:
        with pytest.raises(expected, match="mine is not prepared") as caught:
            connection.tpc_prepare()
        assert isinstance(caught.value, txpool.errors.DatabaseError)
    assert databases.prepared() == []
    assert databases.rows("one", "select id from t") == ([(1,)] if spoil == "commit" else [])
    connection.tpc_rollback()  # as PEP 249 has it: before or after tpc_prepare()
    with pytest.raises(psycopg.ProgrammingError):
        connection.tpc_rollback()
    assert_idle(connection)


def test_a_failure_in_the_pipeline_that_prepares(connection: Any, databases: Databases) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero), connection.pipeline():
        connection.tpc_begin("mine")
        connection.execute("select 1/0")
        connection.tpc_prepare()
    assert databases.prepared() == []
    assert_idle(connection)


REFUSALS = {
    "another has that name": (INSERT, psycopg.errors.DuplicateObject),
    "a deferred constraint": ("insert into child values (7)", psycopg.errors.ForeignKeyViolation),
    "a temporary table": ("create temp table s ()", psycopg.errors.FeatureNotSupported),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_the_server_refuses(connection: Any, databases: Databases, why: str) -> None:
    databases.execute("one", "create table child (id integer references t deferrable initially deferred)")
    statement, expected = REFUSALS[why]
    databases.execute("one", "begin; create table other (); prepare transaction 'theirs'")
    connection.tpc_begin("theirs" if why == "another has that name" else "mine")
    connection.execute(statement)
    with pytest.raises(expected):
        connection.tpc_prepare()
    assert databases.prepared() == ["theirs"]
    assert_idle(connection)


def test_the_answer_is_lost(connection: Any, databases: Databases, caplog: pytest.LogCaptureFixture) -> None:
    connection.tpc_begin("mine")
    connection.execute(INSERT)
    databases.rows("two", "select pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError) as caught:
        connection.tpc_prepare()
    assert "whether mine is prepared is not known: see tpc_recover()" in caught.value.__notes__[0]
    connection.close()
    assert "transaction mine may be prepared" in caplog.text


@pytest.mark.parametrize("how", ["begun", "worked", "failed"])
@pytest.mark.parametrize("block", [False, True])
def test_what_is_open_rolls_back_at_give_back(
    connection: Any, postgres_source: DataSource, databases: Databases, how: str, *, block: bool
) -> None:
    pid = connection.info.backend_pid

    def work() -> None:
        connection.tpc_begin("mine")
        if how != "begun":
            connection.execute(INSERT)
        if how == "failed":
            with pytest.raises(psycopg.Error):
                connection.execute("nonsense")

    if block:
        with pytest.raises(psycopg.ProgrammingError), connection:  # as psycopg's commit() within
            work()
    else:
        work()
        connection.close()
    with postgres_source.connect() as other:
        assert other.info.backend_pid == pid
        assert_idle(other)
    assert databases.prepared() == []
    assert rows(postgres_source) == []


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
@pytest.mark.parametrize("how", ["closed", "expired", "dropped"])
def test_what_is_prepared_stays_and_is_said(
    postgres_source: DataSource, databases: Databases, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    postgres_source.pool.resize(0, 1)
    connection: Any = postgres_source.connect()
    prepare(connection)
    if how == "expired":
        postgres_source.pool.drain()
    if how == "dropped":
        with pytest.warns(ResourceWarning, match=r"plain, prepared 'mine' \[IDLE\]> was not closed"):
            del connection
            gc.collect()
    else:
        connection.close()
        assert "datasource one: a connection was closed, and its transaction mine stays prepared" in caplog.text
    assert databases.prepared() == ["mine"]
    with postgres_source.connect(timeout=20) as other:
        assert_idle(other)
        assert [str(each) for each in other.tpc_recover()] == ["mine"]
        other.tpc_commit("mine")
    assert databases.prepared() == []
    assert rows(postgres_source) == [(1, "x")]


def test_autocommit(connection: Any, databases: Databases) -> None:
    connection.autocommit = True
    with pytest.raises(psycopg.ProgrammingError):
        connection.tpc_begin("mine")
    databases.execute("one", "begin; insert into t values (1); prepare transaction 'theirs'")
    connection.tpc_rollback("theirs")
    assert databases.prepared() == []


def test_an_open_one_joins_no_transaction(connection: Any, databases: Databases) -> None:
    for end in ("tpc_rollback", "tpc_commit"):
        connection.tpc_begin("mine")
        connection.execute("insert into t values (1) on conflict do nothing")
        for prepared in (False, True):
            if prepared:
                connection.tpc_prepare()
            with (
                transaction(),
                pytest.raises(txpool.errors.ProgrammingError, match=r"open work of its own.*\. tpc_commit\(\)"),
            ):
                connection.execute(INSERT)
            with transaction(), pytest.raises(psycopg.ProgrammingError):
                connection.commit()
        with transaction():
            getattr(connection, end)()  # as commit() of a connection that has work from before
    assert databases.rows("one", "select id from t") == [(1,)]
    with (
        transaction(),
        pytest.raises(txpool.errors.NotSupportedError, match=r"inside txp1:.*: txpool\.transaction\(\) prepares"),
    ):
        connection.tpc_begin("mine")
    assert_idle(connection)


def test_the_names_of_txpools_own_branches(connection: Any, databases: Databases) -> None:
    ours = "txp1:node:abcdefghijkl:1:0:one:L"
    databases.execute("one", "begin; insert into t values (1); prepare transaction 'txp1:node:abcdefghijkl:1:0:one:L'")
    databases.execute("one", "begin; insert into t values (2); prepare transaction 'txp1 is not one'")
    for name in ("tpc_commit", "tpc_rollback"):
        command = name.removeprefix("tpc_")
        for xid in (ours, psycopg.Xid.from_string(ours)):
            with pytest.raises(
                txpool.errors.ProgrammingError, match=f"txpool-recovery {command} txp1:node:abcdefghijkl:1"
            ):
                getattr(connection, name)(xid)
        with pytest.raises(txpool.errors.ProgrammingError, match="Nothing was done"):
            getattr(connection, name)("txp2:of a later version")
    with pytest.raises(txpool.errors.ProgrammingError, match="take another name"):
        connection.tpc_begin(ours)
    assert databases.prepared() == ["txp1 is not one", ours]
    assert [str(each) for each in connection.tpc_recover()].count(ours) == 1
    connection.tpc_rollback("txp1 is not one")
    assert databases.prepared() == [ours]


def test_it_is_refused_where_a_transaction_is_required(databases: Databases) -> None:
    databases.execute("one", "begin; create table t (); prepare transaction 'theirs'")
    with (
        databases.datasource("one", transaction_required="strict") as strict,
        strict.connect() as connection,
    ):
        for name, arguments in (("tpc_begin", ["x"]), ("tpc_commit", ["theirs"]), ("tpc_recover", [])):
            with pytest.raises(txpool.errors.ProgrammingError, match=r"transaction\.required"):
                getattr(connection, name)(*arguments)
    assert databases.prepared() == ["theirs"]


def test_a_name_that_cannot_be_sent(connection: Any, databases: Databases) -> None:
    connection.tpc_begin("\udc80")
    connection.execute(INSERT)
    with pytest.raises(UnicodeEncodeError):
        connection.tpc_prepare()
    assert databases.rows("one", "select id from t") == []
    assert_idle(connection)


@pytest.mark.costly
def test_an_interrupt_within_prepare(connection: Any, databases: Databases, caplog: pytest.LogCaptureFixture) -> None:
    databases.execute("one", "create table child (id integer references t deferrable initially deferred)")
    with psycopg.connect(databases.dsn("one")) as blocking:
        blocking.execute("insert into t values (7)")
        connection.tpc_begin("mine")
        connection.execute("insert into child values (8) returning 1")
        threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
        blocking.execute("lock table t in access exclusive mode")
        with pytest.raises(KeyboardInterrupt):
            connection.tpc_prepare()
    assert databases.prepared() == []
    connection.close()
    assert "transaction mine may be prepared" in caplog.text
