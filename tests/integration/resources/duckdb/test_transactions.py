"""DuckDB passes the kit, and shares a transaction's outcome, by a row in its table of marks."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import txpool
from tests.integration.resources.duckdb.conftest import execute, rows
from tests.support.forking import in_child
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import run_cases
from txpool.datasource import DataSource

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.mark.costly
def test_it_passes_the_kit(ducks: DataSource) -> None:
    found = run_cases(ducks.settings, patience=5)
    assert found.passed, (found.trouble, [(each.case.name, each.reason) for each in found.results])
    passed = {each.case.name for each in found.results if each.verdict is Verdict.PASSED}
    assert {"swallowed-failure", "fence", "hanging-owner", "two-finishing"} <= passed


def test_it_shares_the_outcome_with_postgresql(ducks: DataSource, databases: Databases) -> None:
    databases.execute("one", "create table t (n int primary key)")
    with databases.datasource("one") as one:

        def write(number: int) -> None:
            ducks.connect().execute("insert into t values (?)", [number])
            one.connect().execute("insert into t values (%s)", (number,))

        with txpool.transaction():
            write(1)
        with pytest.raises(ZeroDivisionError), txpool.transaction():
            write(2)
            raise ZeroDivisionError
        # A statement that fails has undone the whole: DuckDB's COMMIT would roll back, and say nothing.
        with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
            with pytest.raises(txpool.IntegrityError):
                write(1)
            one.connect().execute("insert into t values (3)")
        with pytest.raises(txpool.ProgrammingError, match="was not sent"), txpool.transaction():
            ducks.connect().execute("commit")
    assert [(n,) for n in rows(ducks)] == databases.rows("one", "select n from t") == [(1,)]


def test_the_mark_is_in_the_file_whatever_the_program_uses(
    ducks: DataSource, tmp_path: Any, databases: Databases
) -> None:
    """Another database that is attached has such a table, too."""
    databases.execute("one", "create table t (n int primary key)")
    other = f"{tmp_path}/other.duckdb"
    execute(ducks, f"attach '{other}' as other")
    execute(ducks, "create table other.xids as select * from xids")
    before = execute(ducks, "select count(*) from other.xids")
    # Before 2.0 a transaction has another number in another database, and so cannot be told from a later one.
    tells = int(duckdb.__version__.partition(".")[0]) >= 2
    end: Any = nullcontext() if tells else pytest.raises(txpool.TransactionRolledBack, match="USE of another database")
    with end, databases.datasource("one") as one, txpool.transaction() as tx:
        ducks.connect().execute('insert into "my-ducks".t values (1)')
        ducks.connect().execute("use other")
        one.connect().execute("insert into t values (1)")
    assert rows(ducks) == [1] * tells
    assert execute(ducks, f"select kind from xids where xid = '{tx.gtrid}'") == [("commit",)] * tells
    assert execute(ducks, "select count(*) from other.xids") == before
    assert databases.rows("one", "select n from t") == [(1,)] * tells


def test_two_that_change_one_row_conflict(ducks: DataSource) -> None:
    execute(ducks, "insert into t values (1)")
    with closing(ducks.connect()) as other:
        other.execute("begin")
        other.execute("update t set n = 2")
        with pytest.raises(txpool.Error) as raised, txpool.transaction():
            ducks.connect().execute("update t set n = 3")
        assert ducks.resource_manager.is_transient(raised.value, at_its_end=False)
        other.commit()
    assert rows(ducks) == [2]


def test_a_plain_connection_commits_what_sql_has_begun(ducks: DataSource) -> None:
    with closing(ducks.connect()) as plain:
        plain.execute("insert into t values (1)")  # by itself
        plain.execute("begin transaction")
        plain.execute("insert into t values (2)")
        with pytest.raises(txpool.ProgrammingError), txpool.transaction():
            plain.execute("insert into t values (9)")
        plain.commit()
        plain.execute("/* one more */ begin")
        plain.execute("insert into t values (3)")
        plain.rollback()
        plain.execute("begin")
        plain.execute("insert into t values ($n)", {"n": 4})
        with pytest.raises(txpool.IntegrityError):
            plain.execute("insert into t values (1)")
        with pytest.raises(txpool.Error, match="aborted"):
            plain.commit()
        plain.rollback()
        plain.execute("begin")
        plain.execute("insert into t values (5)")
    assert rows(ducks) == [1, 2]


def test_a_session_is_clean_for_its_next_user(ducks: DataSource) -> None:
    with closing(ducks.connect()) as first:
        first.execute("create temp table mine (n int)")
    with closing(ducks.connect()) as second, pytest.raises(txpool.Error, match="mine"):
        second.execute("select * from mine")


def test_a_forked_process_does_not_open_it(ducks: DataSource) -> None:
    """DuckDB's memory is copied, its lock is not: both would write into the file."""
    execute(ducks, "insert into t values (1)")

    def work() -> None:
        with pytest.raises(txpool.OperationalError, match="a forked process cannot open DuckDB"):
            ducks.connect()

    in_child(work)
    execute(ducks, "insert into t values (2)")
    assert rows(ducks) == [1, 2]


def test_a_process_that_is_forked_while_it_opens_does_not_open_it(
    ducks: DataSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another thread forked: DuckDB has the file open already, and this connection is not there yet."""
    import duckdb

    def work() -> None:
        monkeypatch.undo()
        with pytest.raises(txpool.OperationalError, match="a forked process cannot open DuckDB"):
            other.connect()

    def connect(*args: Any, **options: Any) -> Any:
        opened = actual(*args, **options)
        in_child(work)
        return opened

    ducks.close()
    actual = duckdb.connect
    with DataSource("other", driver="duckdb", mode="local", url=f"duckdb:///{tmp_path}/other.duckdb") as other:
        monkeypatch.setattr(duckdb, "connect", connect)
        other.connect().close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "xa"}, "DuckDB cannot prepare. Write mode = cmr or local"),
        ({"mode": "last-resource"}, "DuckDB cannot prepare"),
        ({"url": "duckdb:///:memory:"}, "what is in memory cannot be recovered"),
        ({"user": "me"}, "DuckDB knows no users"),
    ],
)
def test_settings_that_cannot_be_served(options: dict[str, str], says: str) -> None:
    given = {"name": "ducks", "driver": "duckdb", "mode": "cmr", "url": "duckdb:///ducks.duckdb"} | options
    with pytest.raises(txpool.ConfigurationError, match=says):
        DataSource(**given)  # type: ignore[arg-type]
