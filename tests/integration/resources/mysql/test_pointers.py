"""A marked datasource decides beside a database that names its branches early: rule 35."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import txpool
from tests.conftest import Databases
from tests.integration.resources.mysql.branches import BranchDatabase, work
from txpool import failpoints


@pytest.fixture
def ledger(managed: BranchDatabase, tmp_path: Path) -> Iterator[txpool.DataSource]:
    """A marked SQLite file with the table."""
    made = txpool.DataSource(name="ledger", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/ledger.db")
    with made, closing(made.connect()) as connection:
        connection.execute("create table work (id integer)")
        connection.commit()
        made.xids_table().create()  # type: ignore[attr-defined]
        yield made


def in_file(ledger: txpool.DataSource, query: str) -> list[int]:
    with closing(sqlite3.connect(ledger.url.removeprefix("sqlite:///"))) as file:
        return [value for (value,) in file.execute(query)]


def pointers(tmp_path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(tmp_path / "log/log.db")) as log:
        return log.execute("select gtrid, datasource from pointers").fetchall()


MARKS = "select xid from xids where xid <> 'txp1:identity'"


def test_35_a_marked_datasource_beside_it_decides_by_a_pointer_which_goes_after_its_row(
    managed: BranchDatabase, ledger: txpool.DataSource, tmp_path: Path
) -> None:
    source, seen = managed.datasource(), []
    failpoints.arm("coordinator.decided", lambda: seen.append((managed.server.names(), pointers(tmp_path))))
    with txpool.transaction() as tx:
        work(1, ledger, source)
    ((names, pointed),) = seen
    assert names == [f"{tx.gtrid}:1:{source.name}:L"], "named before anybody knew"
    assert [(gtrid, where.split(":")[0]) for gtrid, where in pointed] == [(tx.gtrid, "ledger")]
    assert managed.rows() == in_file(ledger, "select id from work") == [1]
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        work(2, source, ledger)
        raise ZeroDivisionError
    with failpoints.arming("coordinator.prepared", "raise"), pytest.raises(txpool.Error), txpool.transaction():
        work(3, source, ledger)
    assert managed.rows() == in_file(ledger, "select id from work") == [1]
    assert [gtrid for gtrid, _ in pointers(tmp_path)] == in_file(ledger, MARKS) == [tx.gtrid]
    ledger.close()
    assert pointers(tmp_path) == []
    assert in_file(ledger, MARKS) == []


def test_35_rows_and_pointers_go_in_the_same_batches(managed: BranchDatabase, tmp_path: Path) -> None:
    source = managed.datasource()
    options = {"driver": "sqlite3", "mode": "cmr", "url": f"sqlite:///{tmp_path}/ledger.db", "cmr_batch_size": 5}
    with txpool.DataSource(name="ledger", **options) as ledger, closing(ledger.connect()) as connection:
        connection.execute("create table work (id integer)")
        connection.commit()
        ledger.xids_table().create()  # type: ignore[attr-defined]
        most = 0
        for number in range(12):
            with txpool.transaction():
                work(number, source, ledger)
            most = max(most, len(pointers(tmp_path)))
        assert most <= 6
        assert managed.rows() == in_file(ledger, "select id from work") == [*range(12)]
        txpool.configure()  # which closes the log, and so deletes before it what points
        assert pointers(tmp_path) == []


def test_35_a_marked_datasource_in_which_nothing_was_done_decides_nothing(
    managed: BranchDatabase, ledger: txpool.DataSource, databases: Databases, tmp_path: Path
) -> None:
    databases.execute("one", "create table work (id int)")
    seen: list[object] = []
    source = managed.datasource()
    with databases.datasource("one", "pg") as pg:
        failpoints.arm("coordinator.decided", lambda: seen.append((managed.server.names(), pointers(tmp_path))))
        with txpool.transaction() as tx:
            ledger.connect()
            work(1, pg, source)
    assert seen == [([f"{tx.gtrid}:2:{source.name}:L"], [])]
    assert managed.rows() == [1]
