"""What several tests of transactions over real databases stand on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.integration.tm.characteristics import Sources
from tests.integration.tm.three_databases import ThreeDatabases
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture
def world(databases: Databases, tmp_path: Path) -> Iterator[ThreeDatabases]:
    """The three databases, each with an empty table, and a coordinator with a log of its own."""
    for name in ("one", "two"):
        databases.execute(name, "create table t (a integer primary key)")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        ledger.execute("pragma journal_mode = wal")
        ledger.execute("create table t (a integer primary key)")
    server = databases.server
    options = {"driver": "psycopg", "mode": "xa", "password": server.password, "pool_max_wait": 5}
    one, two = (txpool.DataSource(name=name, url=server.url(name), **options) for name in ("one", "two"))
    ledger_source = txpool.DataSource(
        name="ledger", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/ledger.db", cmr_batch_size=1
    )
    ledger_source.xids_table().create()  # type: ignore[attr-defined]
    txpool.configure(node_name="here", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    yield ThreeDatabases(databases, one, two, ledger_source, tmp_path)
    for datasource in (one, two, ledger_source):
        datasource.close()
    txpool.configure(node_name="tests", log_url="memory:")


@pytest.fixture
def sources(databases: Databases, tmp_path: Path) -> Iterator[Sources]:
    """Datasources over tables of their own, closed at the end."""
    manager = configure(node_name="tests", log_url="memory:")
    opened = Sources(databases, tmp_path)
    yield opened
    opened.close()
    manager.close()
