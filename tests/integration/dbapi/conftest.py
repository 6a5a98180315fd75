"""What a connection does beyond PEP 249: a datasource of two connections, on PostgreSQL and on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from txpool.datasource import DataSource
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture(autouse=True)
def coordinator() -> Iterator[None]:
    manager = configure(node_name="tests", log_url="memory:")
    yield
    manager.close()


@pytest.fixture
def postgres_source(databases: Databases) -> Iterator[DataSource]:
    databases.execute("one", "create table t (id integer primary key, v text)")
    with databases.datasource("one", pool_max_size=2) as datasource:
        yield datasource


@pytest.fixture
def sqlite_source(tmp_path: Path) -> Iterator[DataSource]:
    with sqlite3.connect(tmp_path / "one.db") as raw:
        raw.execute("create table t (id integer primary key, v text)")
    raw.close()
    url = f"sqlite:///{tmp_path}/one.db"
    with DataSource(name="lite", driver="sqlite3", mode="local", url=url, pool_max_size=2) as datasource:
        yield datasource
