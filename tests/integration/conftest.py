"""What several modules stand on: a datasource that joins, and where recovery works."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.recovery_site import BOTH, HOLDER, Site
from txpool.datasource import DataSource
from txpool.resources.marked.xids import Xids

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


@pytest.fixture
def site(tmp_path: Path, databases: Any) -> Site:
    return Site(tmp_path, databases)


@pytest.fixture
def held(site: Site) -> Iterator[tuple[Any, str]]:
    yield from _holder(site, *BOTH)


@pytest.fixture
def held_marked(site: Site) -> Iterator[tuple[Any, str]]:
    yield from _holder(site, *BOTH, "ledger")


def _holder(site: Site, *names: str) -> Iterator[tuple[Any, str]]:
    """A living process that is prepared, and has decided nothing."""
    process = site.process(HOLDER, *names, failpoints="coordinator.prepared=hang")
    try:
        gtrid = process.stdout.readline().strip()
        while len(site.databases.prepared()) < len(set(names) - {"ledger"}):
            assert process.poll() is None, process.stderr.read()
        yield process, gtrid
    finally:
        process.kill()
        process.communicate()
