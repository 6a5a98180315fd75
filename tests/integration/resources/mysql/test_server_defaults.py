"""A server whose sessions begin otherwise than usual: without autocommit, or with transactions that only read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import txpool
from tests.integration.resources.mysql.branches import BranchDatabase

MODES = ["xa", "cmr", "local", "last-resource"]


@pytest.fixture
def managed(world: BranchDatabase, tmp_path: Path) -> Iterator[BranchDatabase]:
    """With a coordinator and its log, and without what txpool makes on a server first."""
    world.server.execute("drop database if exists txpool")
    world.server.execute("create table work (id int primary key) engine=innodb", database="two")
    txpool.configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    try:
        yield world
    finally:
        txpool.configure()


@pytest.fixture(params=["autocommit = 0", "transaction read only"])
def default(managed: BranchDatabase, request: pytest.FixtureRequest) -> Iterator[str]:
    managed.server.execute(f"set global {request.param}")
    yield request.param
    managed.server.execute("set session transaction read write", "set global transaction read write")
    managed.server.execute("set global autocommit = 1")


@pytest.mark.parametrize("mode", MODES)
def test_transactions(managed: BranchDatabase, default: str, mode: str) -> None:
    source, other = managed.datasource("one", mode=mode, name=mode), managed.datasource("two")
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    alone = mode == "local"

    def work(number: int) -> None:
        if not alone:
            other.connect().cursor().execute("insert into work (id) values (%s)", [number])
        source.connect().cursor().execute("insert into work (id) values (%s)", [number])

    def written() -> list[list[int]]:
        read = "select id from work order by id"
        found = [managed.server.execute(read, database=name) for name in ("one", "two")]
        return [[number for (number,) in rows] for rows in found]

    with txpool.transaction(read_only=False):
        work(1)
    with suppress(ZeroDivisionError), txpool.transaction(read_only=False):
        work(2)
        raise ZeroDivisionError
    with txpool.transaction(read_only=False, transaction_id=mode, record_in=source):
        source.connect().cursor().execute("insert into work (id) values (3)")
    assert written() == [[1, 3], [] if alone else [1]]
    if "read only" in default:
        with pytest.raises(txpool.Error, match="READ ONLY"), txpool.transaction():
            work(4)
    else:
        with txpool.transaction():
            work(4)
        assert written() == [[1, 3, 4], [] if alone else [1, 4]]
    assert managed.server.prepared() == []
