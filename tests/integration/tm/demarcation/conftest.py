"""What becomes of a connection around a transaction: on PostgreSQL, and on a marked SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.integration.tm.demarcation.reports import Reports
from tests.integration.tm.demarcation.table import OneDatasource
from txpool.datasource import DataSource
from txpool.resources.marked.xids import Xids
from txpool.tm.ambient import current
from txpool.tm.demarcation.calls import rollback
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture(autouse=True)
def coordinator() -> Iterator[None]:
    manager = configure(node_name="tests", log_url="memory:")
    yield
    rollback() if current() is not None else None
    manager.close()


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Reports:
    return Reports(caplog, str(request.path))


@pytest.fixture(params=["psycopg", "sqlite3"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OneDatasource]:
    options: dict[str, Any]
    if request.param == "psycopg":
        databases: Databases = request.getfixturevalue("databases")
        options = {"mode": "xa", "url": databases.url("one"), "password": databases.server.password}
        world = OneDatasource(
            options | {"name": "one", "driver": request.param},
            lambda: psycopg.connect(databases.dsn("one"), autocommit=True),
        )
    else:
        options = {"mode": "cmr", "url": f"sqlite:///{tmp_path}/one.db", "driver_timeout": 1}
        world = OneDatasource(
            options | {"name": "one", "driver": request.param},
            lambda: sqlite3.connect(tmp_path / "one.db", isolation_level=None),
        )
        Xids("one", world.datasource.driver_adapter).create()
    with closing(world.bare()) as raw:
        raw.execute("create table t (n integer primary key)")
    yield world
    for datasource in world.opened:
        datasource.close()


@pytest.fixture
def strict(world: OneDatasource) -> DataSource:
    """The same, with transaction.required = strict."""
    return world.open(transaction_required="strict")
