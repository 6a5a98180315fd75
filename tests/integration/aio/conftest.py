"""Two PostgreSQL databases and a log in a folder, for tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases

pytest.importorskip("greenlet")

if TYPE_CHECKING:
    from tests.conftest import Databases


#: Seconds after which a test's work has failed.
_DEADLINE = 180.0


@pytest.fixture(autouse=True)
def _with_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has an event loop do ends, also if it waits for what never comes."""
    run = asyncio.run

    async def bounded(work: Coroutine[Any, Any, Any]) -> Any:
        async with asyncio.timeout(_DEADLINE):
            return await work

    monkeypatch.setattr(asyncio, "run", lambda work, **options: run(bounded(work), **options))


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
