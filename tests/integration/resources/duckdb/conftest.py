"""A marked datasource in a DuckDB file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txpool.datasource import DataSource
from txpool.resources.marked.xids import Xids
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.fixture(autouse=True)
def installed(require: Require) -> None:
    try:
        import duckdb  # noqa: F401
    except ImportError:
        require(False, "duckdb")


@pytest.fixture
def ducks(tmp_path: Path) -> Iterator[DataSource]:
    """With a table of marks, and the table `t`."""
    manager = configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    with DataSource("ducks", driver="duckdb", mode="cmr", url=f"duckdb:///{tmp_path}/my-ducks.duckdb") as datasource:
        execute(datasource, "create table t (n int primary key)")
        Xids("ducks", datasource.driver_adapter).create()
        yield datasource
    manager.close()


def execute(datasource: DataSource, statement: str) -> list[Any]:
    """Execute on a plain connection, which commits each statement."""
    with closing(datasource.connect()) as connection:
        found: list[Any] = connection.cursor().execute(statement).fetchall()
    return found


def rows(datasource: DataSource) -> list[int]:
    return [n for (n,) in execute(datasource, "select n from t order by n")]
