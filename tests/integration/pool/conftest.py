"""A datasource on the shared server, with whatever settings a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.pool.sessions import NAME
from txpool.datasource import DataSource
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from tests.conftest import Databases

OpenSource = Callable[..., DataSource]


@pytest.fixture(autouse=True)
def coordinator() -> Iterator[None]:
    manager = configure(node_name="tests", log_url="memory:")
    yield
    manager.close()


@pytest.fixture
def source(databases: Databases) -> Iterator[OpenSource]:
    """`source(pool_max_size=2)`: a datasource of database "one", closed at the end."""
    opened: list[DataSource] = []
    databases.execute("one", "create table t (id integer primary key, v text)")

    def open_source(**options: Any) -> DataSource:
        settings: dict[str, Any] = {"name": "one", "driver": "psycopg", "url": databases.url("one")}
        if "credentials" not in options:
            settings["password"] = databases.server.password
        opened.append(DataSource(**settings | options))
        return opened[-1]

    yield open_source
    for datasource in opened:
        datasource.close()


@pytest.fixture
def pooled(source: OpenSource) -> Callable[..., DataSource]:
    """`source` with a name by which the server shows the pool's sessions."""
    return lambda **options: source(driver_application_name=NAME, **options)
