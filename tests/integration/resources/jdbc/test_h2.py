"""H2's own traps: crashes with branches prepared; and H2 over TCP, where one process at a time ends branches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from recovery import RecoveryManager
from tests.conftest import Databases
from tests.integration.resources.jdbc.test_traps import prepared
from tests.support.jdbc_places import JdbcPlaces
from txpool.datasource import DataSource
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.jdbc.jvm import jvm
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from tests.support.jdbc import Jars

HOLD = "select one from txpool.server where one = 1 for update"


def crash(source: DataSource) -> None:
    """Leave the database as the death of its process does."""
    raw: Any = source.driver_adapter.connect()
    with suppress(Exception):
        raw.run("shutdown immediately")
    source.flush()  # its connections died with it, and one that was used just now is not checked


def test_its_file_opens_after_crashes(jdbc_places: JdbcPlaces) -> None:
    """What a prepared transaction had written to a temporary table was not readable from the second start on."""
    source = jdbc_places.open("h2")
    for number in (1, 2, 3):
        prepared(source, number)
        crash(source)
    recovery = source.branch_recovery()
    assert len(recovery.recover()) == 3
    crash(source)
    for branch in recovery.recover():
        assert recovery.commit(BranchRecord(branch.xid, source.name)) is BranchOutcome.COMMITTED
    assert jdbc_places.rows(source) == [1, 2, 3]
    assert jdbc_places.execute(source, "select * from txpool.begun") == []


def test_nothing_is_prepared_beside_a_temporary_table(jdbc_places: JdbcPlaces, other: DataSource) -> None:
    source = jdbc_places.open("h2")
    with closing(source.connect()) as connection:  # as long as it is open, so is the database
        connection.cursor().execute("create global temporary table mine (id int)")
        connection.commit()
        with pytest.raises(txpool.TransactionRolledBack, match="has the temporary table MINE"), txpool.transaction():
            for each in (source, other):
                each.connect().cursor().execute("insert into t (id) values (1)")
    assert jdbc_places.rows(source) == []


@pytest.fixture
def served(jdbc_places: JdbcPlaces, jdbc_jars: Jars, tmp_path: Path) -> Iterator[DataSource]:
    servers: Any = jvm.started(jdbc_jars.h2).load("org.h2.tools.Server")
    server = servers.createTcpServer("-tcpPort", "0", "-ifNotExists", "-baseDir", str(tmp_path))
    server.start()
    yield jdbc_places.open("h2", URL=f"jdbc:h2:tcp://127.0.0.1:{server.getPort()}/./h2")
    jdbc_places.close()
    server.stop()


@pytest.fixture
def other(databases: Databases, tmp_path: Path) -> Iterator[DataSource]:
    """A database of PostgreSQL's; and a decision log."""
    databases.execute("two", "create table t (id int)")
    txpool.configure(node_name="etl-1", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    with databases.datasource("two", "other") as source:
        yield source
    txpool.configure()


def test_who_ends_a_branch_waits_for_who_does(
    served: DataSource, other: DataSource, jdbc_places: JdbcPlaces, databases: Databases
) -> None:
    driver: Any = served.driver_adapter
    holder = driver.connect()  # as another process has it
    holder.run(HOLD).fetchall()
    done: list[str] = []

    def transact() -> None:
        with txpool.transaction():
            for source in (served, other):
                source.connect().cursor().execute("insert into t (id) values (1)")
        done.append("done")

    thread = threading.Thread(target=transact)
    thread.start()
    while not databases.prepared():
        assert thread.is_alive()
        thread.join(0.05)
    thread.join(1.0)
    assert done == []
    assert len(holder.database.names(holder)) == 1
    holder.rollback()
    thread.join()
    assert done == ["done"]
    assert jdbc_places.rows(served) == [1]
    assert holder.database.names(holder) == set()
    driver.close(holder)


def test_what_could_not_be_ended_in_time_is_left_to_recovery(
    served: DataSource, other: DataSource, jdbc_places: JdbcPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txpool.resources.jdbc.databases.h2._HOLD_WAIT", "set lock_timeout 1")
    driver: Any = served.driver_adapter
    holder = driver.connect()
    holder.run(HOLD).fetchall()
    with txpool.transaction():
        for source in (served, other):
            source.connect().cursor().execute("insert into t (id) values (1)")
    assert len(holder.database.names(holder)) == 1
    log = get_manager().log
    assert log is not None
    assert log.finished()
    driver.close(holder)
    RecoveryManager(log=log, datasources=[served, other], backoff=0).scan()
    assert jdbc_places.rows(served) == [1]
    assert served.branch_recovery().recover() == []
