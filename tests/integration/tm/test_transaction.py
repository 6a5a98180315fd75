"""One transaction over two PostgreSQL databases and a marked SQLite file: what each end of it leaves in them."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import txpool
from tests.integration.tm.three_databases import ThreeDatabases
from txpool import failpoints
from txpool.tm.manager import get_manager


def test_all_three_commit_and_nothing_stays_behind(world: ThreeDatabases) -> None:
    with txpool.transaction():
        world.insert(world.one, world.two, world.ledger)
        assert world.held == (0, 0, 0)
    assert world.held == (1, 1, 1)
    assert world.databases.prepared() == []
    assert world.marks == []


def test_all_three_roll_back(world: ThreeDatabases) -> None:
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        world.insert(world.one, world.two, world.ledger)
        raise ZeroDivisionError
    assert world.held == (0, 0, 0)
    assert world.databases.prepared() == []
    assert world.marks == []


def test_the_false_yes_of_a_failed_transaction_is_a_vote_to_roll_back(world: ThreeDatabases) -> None:
    """psycopg's own tpc_prepare() answers yes here, and a hand-written two-phase commit is torn: one of two commits."""
    server = world.databases.server
    with psycopg.connect(server.dsn("one")) as one, psycopg.connect(server.dsn("two")) as two:
        for number, connection in enumerate((one, two)):
            connection.tpc_begin(connection.xid(1, "by-hand", str(number)))
            connection.execute("insert into t values (100)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            two.execute("select * from nowhere")
        one.tpc_prepare()
        two.tpc_prepare()
        one.tpc_commit()
        with pytest.raises(psycopg.Error):
            two.tpc_commit()
        two.close()
    assert world.held == (1, 0, 0), "the bug that users of tpc_prepare() have today is gone: a test to rethink"

    with pytest.raises(txpool.TransactionRolledBack, match="two"), txpool.transaction():
        world.insert(world.one, world.two)
        with closing(world.two.connect()) as connection, pytest.raises(txpool.ProgrammingError):
            connection.cursor().execute("select * from nowhere")
    assert world.held == (1, 0, 0), "and with txpool nothing is torn"
    assert world.databases.prepared() == []


def test_a_constraint_that_is_checked_at_prepare_rolls_all_back(world: ThreeDatabases) -> None:
    world.databases.execute("two", "create table child (a integer references t deferrable initially deferred)")
    with pytest.raises(txpool.TransactionRolledBack) as raised, txpool.transaction():
        world.insert(world.one, world.ledger)
        with closing(world.two.connect()) as connection:
            connection.cursor().execute("insert into child values (42)")
    assert isinstance(raised.value.__cause__, psycopg.errors.ForeignKeyViolation)
    assert isinstance(raised.value.__cause__, txpool.IntegrityError)
    assert "datasource two voted to roll back" in str(raised.value)
    assert world.held == (0, 0, 0)
    assert world.databases.prepared() == []
    assert world.marks == []


def test_what_is_refused_by_the_only_database_names_it(world: ThreeDatabases) -> None:
    world.databases.execute("two", "create table child (a integer references t deferrable initially deferred)")
    with pytest.raises(txpool.TransactionRolledBack, match="datasource two refused to commit"), txpool.transaction():
        world.two.connect().cursor().execute("insert into child values (42)")
    with pytest.raises(txpool.TransactionRolledBack, match="datasource two: COMMIT was not sent"):
        with txpool.transaction(), closing(world.two.connect()) as connection:
            with pytest.raises(txpool.ProgrammingError):
                connection.cursor().execute("select * from nowhere")


def test_a_database_that_cannot_be_connected_to_is_named(tmp_path: Path, world: ThreeDatabases) -> None:
    nowhere = tmp_path / "nowhere" / "ledger.db"
    with (
        txpool.DataSource(name="lost", driver="sqlite3", mode="local", url=f"sqlite:///{nowhere}") as lost,
        pytest.raises(sqlite3.OperationalError, match=f"datasource lost .*{nowhere}.*unable to open"),
    ):
        lost.connect()
    options: dict[str, Any] = {"driver": "psycopg", "url": world.databases.url("one"), "driver_xyz": "1"}
    with (
        txpool.DataSource(name="odd", password=world.databases.server.password, **options) as odd,
        pytest.raises(txpool.ProgrammingError, match=r"datasource odd .*xyz"),
    ):
        odd.connect()


def test_no_log_is_an_error_that_shows_the_two_lines(world: ThreeDatabases) -> None:
    txpool.configure()
    with pytest.raises(txpool.ProgrammingError) as raised, txpool.transaction():
        world.insert(world.one, world.two)
    assert "\n    node.name = " in str(raised.value)
    assert "\n    log.url = sqlite:///" in str(raised.value)
    assert world.held == (0, 0, 0)
    with txpool.transaction():
        world.insert(world.one)
    assert world.held == (1, 0, 0), "one database needs no log"


def test_a_second_marked_datasource_is_refused_and_the_first_goes_on(world: ThreeDatabases) -> None:
    world.databases.execute("one", "create table other (a integer)")
    server = world.databases.server
    other = txpool.DataSource(
        name="other", driver="psycopg", mode="cmr", url=server.url("one"), password=server.password
    )
    with txpool.transaction():
        world.insert(world.ledger)
        with pytest.raises(txpool.ProgrammingError, match="only one"):
            other.connect()
    other.close()
    assert world.held == (0, 0, 1)


def test_a_local_datasource_must_be_alone(world: ThreeDatabases) -> None:
    server = world.databases.server
    local = txpool.DataSource(
        name="local", driver="psycopg", mode="local", url=server.url("one"), password=server.password
    )
    with txpool.transaction():
        world.insert(local)
        with pytest.raises(txpool.ProgrammingError, match="must be alone"):
            world.two.connect()
    with txpool.transaction():
        world.insert(world.two)
        with pytest.raises(txpool.ProgrammingError, match="must be alone"):
            local.connect()
    local.close()
    assert world.held == (1, 1, 0)


def test_an_idle_datasource_takes_no_part(world: ThreeDatabases) -> None:
    with txpool.transaction():
        world.insert(world.one)
        world.two.connect().close()
        world.ledger.connect().close()
    assert world.held == (1, 0, 0)
    with closing(sqlite3.connect(world.folder / "txlog" / "log.db")) as log:
        assert log.execute("select count(*) from decisions").fetchone()[0] == 0, "one branch needs no decision"


def test_a_connection_that_was_closed_to_establish_the_truth_does_not_go_back(
    world: ThreeDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    failpoints.arm("marked.committed", "raise")
    with txpool.transaction():
        world.insert(world.one, world.two, world.ledger)
    failpoints.disarm()
    assert world.held == (1, 1, 1)
    assert "could not be reset" not in caplog.text
    statistics = world.ledger.statistics()
    assert (statistics.reset_failures, statistics.taken) == (0, 0)
    with txpool.transaction():
        world.insert(world.one, world.ledger, value=2)
    assert world.held == (2, 1, 2)


def test_work_of_other_threads_in_the_same_transaction_is_part_of_it(world: ThreeDatabases) -> None:
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction() as tx:
        connections = [world.one.connect() for _ in range(8)]
        threads = [
            threading.Thread(target=c.cursor().execute, args=(f"insert into t values ({n})",))
            for n, c in enumerate(connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert world.held == (0, 0, 0)
        assert world.one.statistics().size == 1
        tx.set_rollback_only()
        with pytest.raises(txpool.ProgrammingError):
            world.insert(world.one)
    assert world.held == (0, 0, 0)


def test_a_decision_that_may_or_may_not_be_written_is_in_doubt_and_settled_in_the_background(
    world: ThreeDatabases,
) -> None:
    """The log's disk fails after the vote: nobody commits or rolls back until an abort record has told the truth."""
    failpoints.arm("log.recorded")
    failpoints.arm("log.abort")
    try:
        with pytest.raises(txpool.TransactionInDoubt) as raised, txpool.transaction() as tx:
            world.insert(world.one, world.two)
        assert tx.status is txpool.Status.IN_DOUBT
        assert raised.value.gtrid == tx.gtrid
        assert len(world.databases.prepared()) == 2
        assert world.held == (0, 0, 0)
    finally:
        failpoints.disarm()
    deadline = time.monotonic() + 600
    while get_manager().in_doubt and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tx.status is txpool.Status.COMMITTED, "the record had landed"
    assert world.held == (1, 1, 0)
    assert world.databases.prepared() == []
