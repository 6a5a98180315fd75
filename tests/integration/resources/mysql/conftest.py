"""The servers of these tests: MariaDB and MySQL, emptied before each test."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.resources.mysql.branches import BranchDatabase
from tests.support.mysql import MySQLServer

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.fixture(params=["mariadb", "mysql8"])
def server(request: pytest.FixtureRequest) -> MySQLServer:
    """Each of the two servers, emptied."""
    found: MySQLServer = request.getfixturevalue(request.param)
    found.empty()
    return found


@pytest.fixture(params=["pymysql", "mysqlclient"])
def world(server: MySQLServer, request: pytest.FixtureRequest, require: Require) -> Iterator[BranchDatabase]:
    """A database with branches, on each of the two servers, over each of the two drivers."""
    require(importlib.util.find_spec("MySQLdb"), "mysqlclient: apt-get install libmariadb-dev; pip install mysqlclient")
    world = BranchDatabase(server, request.param)
    try:
        yield world
    finally:
        world.close()
