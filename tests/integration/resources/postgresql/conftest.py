"""A database with a table of work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.resources.postgresql.branches import BranchDatabase
from txpool import failpoints

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture
def world(databases: Databases) -> Iterator[BranchDatabase]:
    databases.execute("one", "create table work (id int primary key deferrable initially deferred)")
    world = BranchDatabase(databases)
    yield world
    failpoints.disarm()
    for raw in world.raws:
        raw.close()
