"""The servers of these tests: MariaDB and MySQL, emptied before each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.integration.resources.mysql.branches import BranchDatabase
from tests.support.mysql import MySQLServer
from txpool import failpoints

if TYPE_CHECKING:
    from tests.support.mysql import RequireDriver


@pytest.fixture(params=["mariadb", "mysql8"])
def server(request: pytest.FixtureRequest) -> MySQLServer:
    """Each of the two servers, emptied."""
    found: MySQLServer = request.getfixturevalue(request.param)
    found.empty()
    return found


@pytest.fixture(params=["pymysql", "mysqlclient"])
def world(
    server: MySQLServer, request: pytest.FixtureRequest, require_driver: RequireDriver
) -> Iterator[BranchDatabase]:
    """A database with branches, on each of the two servers, over each of the two drivers."""
    require_driver(request.param)
    world = BranchDatabase(server, request.param)
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def managed(world: BranchDatabase, tmp_path: Path) -> Iterator[BranchDatabase]:
    """The world, with a coordinator and its log, and the table also in the server's second database."""
    world.server.execute("create table work (id int primary key, v int) engine=innodb", database="two")
    txpool.configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    try:
        yield world
    finally:
        failpoints.disarm()
        txpool.configure()
