"""What the tests of SQLAlchemy and of pandas share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from txpool.datasource import DataSource
from txpool.resources.xids import Xids

if TYPE_CHECKING:
    from tests.conftest import Databases

    Joining = tuple[DataSource, Callable[[], Any]]


@pytest.fixture(params=["postgresql", "sqlite"])
def joining(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Joining]:
    """A datasource with `managed.commit = join`, and what opens a bare driver connection to its database."""
    options: dict[str, Any] = {"name": "fares", "managed_commit": "join"}
    if request.param == "postgresql":
        databases: Databases = request.getfixturevalue("databases")
        options |= {"driver": "psycopg", "url": databases.url("one"), "password": databases.server.password}
        with DataSource(**options) as datasource:
            yield datasource, lambda: psycopg.connect(databases.dsn("one"), autocommit=True)
    else:
        options |= {"driver": "sqlite3", "mode": "cmr", "url": f"sqlite:///{tmp_path}/one.db"}
        with DataSource(**options) as datasource:
            Xids("fares", datasource.driver_adapter).create()
            yield datasource, lambda: sqlite3.connect(tmp_path / "one.db", isolation_level=None)
