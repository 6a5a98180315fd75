"""A marked resource manager that another package brings: DuckDB passes the kit, and shares a transaction's outcome."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import run_cases
from txpool.datasource import DataSource
from txpool.resources.marked.xids import Xids
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from tests.conftest import Databases, Require


@pytest.fixture
def marked(tmp_path: Path, require: Require) -> Iterator[DataSource]:
    try:
        from tests.integration.resources.outside import over_duckdb
    except ImportError:
        require(False, "duckdb")
    over_duckdb.duckdb.connect(str(tmp_path / "ducks.duckdb")).close()
    manager = configure(node_name="tests", log_url="memory:")
    driver = f"{over_duckdb.__name__}:OverDuckDB"
    with DataSource("ducks", driver=driver, mode="cmr", url=f"duckdb:///{tmp_path}/ducks.duckdb") as datasource:
        yield datasource
    manager.close()


@pytest.mark.slow
def test_it_passes_the_kit(marked: DataSource) -> None:
    found = run_cases(marked.settings, patience=5)
    assert found.passed, (found.trouble, [(each.case.name, each.reason) for each in found.results])
    passed = {each.case.name for each in found.results if each.verdict is Verdict.PASSED}
    assert {"swallowed-failure", "fence", "hanging-owner", "two-finishing"} <= passed


def rows(datasource: DataSource) -> list[Any]:
    with closing(datasource.connect()) as connection:
        found: list[Any] = connection.cursor().execute("select n from t order by n").fetchall()
    return found


def test_it_shares_the_outcome_with_postgresql(marked: DataSource, databases: Databases) -> None:
    Xids("ducks", marked.driver_adapter).create()
    databases.execute("one", "create table t (n int primary key)")
    with closing(marked.connect()) as connection:
        connection.cursor().execute("create table t (n int primary key)")
        connection.commit()
    with databases.datasource("one") as one:

        def write(number: int) -> None:
            marked.connect().cursor().execute("insert into t values (?)", [number])
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
            marked.connect().cursor().execute("commit")
    assert rows(marked) == databases.rows("one", "select n from t") == [(1,)]
