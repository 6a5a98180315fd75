"""Two PostgreSQL databases and a log in a folder, for tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases

pytest.importorskip("greenlet")

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture
def two(databases: Databases, tmp_path: Path) -> Iterator[TwoDatabases]:
    for name in ("one", "two"):
        databases.execute(name, "create table t (a integer primary key)")
    server = databases.server
    one, two = (
        txpool.DataSource(
            name=name,
            driver="psycopg",
            mode="xa",
            password=server.password,
            url=server.url(name),
            pool_max_wait=60,
            pool_max_size=5,
        )
        for name in ("one", "two")
    )
    txpool.configure(node_name="here", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    yield TwoDatabases(databases, one, two)
    for datasource in (one, two):
        datasource.close()
    txpool.configure(node_name="tests", log_url="memory:")
