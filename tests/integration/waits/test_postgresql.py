"""A statement that waits for what a dead process has prepared is reported, and where recovery may, it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from operator import attrgetter
from typing import Any

import psycopg
import pytest
from psycopg import sql

import txpool
from recovery import RecoveryManager
from tests.integration.waits.waiting import DEFER, configure, execute, left_by_a_dead_process, reports, said
from tests.support.proxy import NetworkFault, Proxy
from tests.support.recovery_site import BOTH, Site, end
from tests.support.running import running
from tests.support.waiting import until

INSERT = "insert into t values (1)"
MALLORY = "mallory"
#: It does not conflict with what has inserted a row.
LOCK = "lock table t in share update exclusive mode"


def insert() -> None:
    with txpool.transaction():
        txpool.connect("one.properties").cursor().execute(INSERT)


def insert_many() -> None:
    with txpool.transaction():
        txpool.connect("one.properties").cursor().executemany("insert into t values (%s)", [(7,), (1,), (8,)])


def insert_by_copy() -> None:
    with txpool.transaction(), txpool.connect("one.properties").cursor().copy("copy t from stdin") as copy:
        copy.write("1\n")


def insert_in_pipeline() -> None:
    with txpool.transaction(), txpool.connect("one.properties").pipeline():
        txpool.connect("one.properties").execute(INSERT)


def insert_plainly() -> None:
    with txpool.connect("one.properties") as connection:
        connection.execute(INSERT)


def copy_plainly() -> None:
    with txpool.connect("one.properties") as connection, connection.cursor().copy("copy t from stdin") as copy:
        copy.write("1\n")


#: Each with the number of its rows.
STATEMENTS = (
    (insert, 1),
    (insert_many, 3),
    (insert_by_copy, 1),
    (insert_in_pipeline, 1),
    (insert_plainly, 1),
    (copy_plainly, 1),
)


@pytest.mark.parametrize(("work", "rows"), STATEMENTS)
def test_a_dead_process_of_this_node_is_named_and_its_branch_ended(
    watched: Site, caplog: pytest.LogCaptureFixture, work: Callable[[], None], rows: int
) -> None:
    gtrid = left_by_a_dead_process(watched, *BOTH)
    with running(work) as done:
        until(lambda: reports(caplog), what="nothing is said of the statement")
        done.result(60)
    (report,) = reports(caplog)
    _, node, incarnation, _ = gtrid.split(":")
    assert report.startswith("one: a statement ")
    assert f"{gtrid} (process {incarnation} of node {node}, prepared " in report
    assert f"`txpool-recovery show {gtrid}`" in report
    assert "by role " + watched.databases.server.user in report
    assert f"{gtrid}: its process is dead, and a scan is made here" in caplog.text
    until(lambda: not watched.databases.prepared())
    assert watched.counts() == {"one": rows, "two": 0, "ledger": 0}


def insert_in_both() -> None:
    with txpool.transaction():
        for name, number in (("one", 1), ("two", 9)):
            txpool.connect(f"{name}.properties").cursor().execute("insert into t values (%s)", [number])


@pytest.mark.parametrize("work", [insert, insert_in_both, insert_plainly])
def test_a_commit_or_prepare_that_waits_is_named_too(
    watched: Site, caplog: pytest.LogCaptureFixture, work: Callable[[], None]
) -> None:
    """A deferred constraint is checked there, and waits for the branch."""
    watched.databases.execute("one", DEFER)
    gtrid = left_by_a_dead_process(watched, *BOTH)
    with running(work) as done:
        until(lambda: reports(caplog), what="nothing is said of it")
        done.result(60)
    (report,) = reports(caplog)
    assert report.startswith("one: a statement ")
    assert f"{gtrid} (process " in report
    until(lambda: not watched.databases.prepared())
    assert watched.counts() == {"one": 1, "two": int(work is insert_in_both), "ledger": 0}


def test_the_recovery_manager_of_the_process_is_asked(watched: Site, caplog: pytest.LogCaptureFixture) -> None:
    manager = RecoveryManager(watched.conf)
    with closing(manager):
        manager.start()
        until(lambda: manager.last_report is not None)
        gtrid = left_by_a_dead_process(watched, *BOTH)
        with running(insert) as done:
            done.result(60)
    assert f"{gtrid}: the recovery manager of this process is asked for a scan" in caplog.text
    assert "a scan is made here" not in caplog.text
    until(lambda: not watched.databases.prepared())


def test_a_process_that_does_not_recover_that_node_only_reports(
    watched: Site, caplog: pytest.LogCaptureFixture, looks: list[int]
) -> None:
    configure("etl-2")
    gtrid = left_by_a_dead_process(watched, *BOTH)
    with running(insert) as done:
        until(lambda: reports(caplog))
        until(lambda: len(looks) > 0)
        assert not done.done()
        assert len(watched.databases.prepared()) == 2
        assert watched.command("scan").returncode == 0
        done.result(60)
    (report,) = reports(caplog)
    assert gtrid in report
    assert "scan is made" not in caplog.text


def test_every_statement_behind_it_is_reported(watched: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The branch has the table locked for writers; a reader waits for one who would lock it all, and is behind."""
    configure("etl-2")
    gtrid = left_by_a_dead_process(watched, *BOTH)

    def lock() -> None:
        with txpool.transaction():
            txpool.connect("one.properties").execute("lock table t in access exclusive mode")

    def read() -> None:
        with txpool.transaction():
            txpool.connect("one.properties").execute("table t")

    with running(lock):
        until(lambda: len(reports(caplog)) == 1)
        with running(read):
            until(lambda: len(reports(caplog)) == 2)
            assert watched.command("scan").returncode == 0
    assert all(gtrid in report for report in reports(caplog))


def test_a_living_process_is_reported_and_left_alone(
    watched: Site, held: tuple[Any, str], caplog: pytest.LogCaptureFixture, looks: list[int]
) -> None:
    process, gtrid = held
    with running(insert) as done:
        until(lambda: reports(caplog))
        once = len(looks)
        with running(insert_plainly) as second:
            until(lambda: len(reports(caplog)) == 2)
            assert len(looks) > once
            assert not done.done()
            assert "scan is made" not in caplog.text
            process.kill()
            process.wait()
            assert watched.command("scan").returncode == 0
            (error,) = filter(None, (done.exception(60), second.exception(60)))
            assert isinstance(error, psycopg.errors.UniqueViolation)
    assert len(reports(caplog)) == 2, "once for each statement"
    assert all(gtrid in report for report in reports(caplog))


def test_nothing_is_said_of_a_statement_that_waits_for_a_session(
    watched: Site, caplog: pytest.LogCaptureFixture, looks: list[int]
) -> None:
    """A prepared branch has the same table locked, in a mode that fits."""
    configure("etl-2")
    left_by_a_dead_process(watched, *BOTH)
    with psycopg.connect(watched.databases.dsn("one")) as session:
        session.execute(LOCK)
        with running(lambda: execute(LOCK)) as done:
            until(lambda: len(looks) >= 3)
            assert not done.done()
            session.rollback()
    assert said(caplog) == []
    assert watched.command("scan").returncode == 0


def test_nothing_is_said_of_a_stranger_under_a_name_of_ours(
    watched: Site, caplog: pytest.LogCaptureFixture, looks: list[int]
) -> None:
    """A role that may only connect prepares with a lock that anybody can take."""
    databases, lock = watched.databases, "select pg_advisory_xact_lock(7)"
    databases.execute("one", f"create role {MALLORY} login password '{MALLORY}'")
    dsn = psycopg.conninfo.make_conninfo(databases.dsn("one"), user=MALLORY, password=MALLORY)
    forged = f"txp1:etl-1:{12 * 'a'}:1:0:one:L"
    try:
        with psycopg.connect(dsn) as connection:
            connection.execute(lock)
            connection.execute(sql.SQL("prepare transaction {}").format(forged))
        with running(lambda: execute(lock)) as done:
            until(lambda: len(looks) >= 3)
            assert not done.done()
            end(watched, "one", "rollback", forged)
    finally:
        databases.execute("one", f"drop role {MALLORY}")
    assert said(caplog) == []


def test_a_look_needs_no_connection_of_the_pool_and_keeps_none(
    watched: Site, caplog: pytest.LogCaptureFixture, looks: list[int]
) -> None:
    configure("etl-2")
    text = (watched.folder / "one.properties").read_text()
    watched.write("one", f"{text}pool.max-size = 1")
    left_by_a_dead_process(watched, *BOTH)
    sessions = (
        "select count(*) from pg_stat_activity where usename = %s and datname = 'one' and pid <> pg_backend_pid()"
    )
    with running(insert):
        until(lambda: reports(caplog))
        until(lambda: watched.databases.rows("one", sessions, [watched.databases.server.user]) == [(1,)])
        once = len(looks)
        assert watched.command("scan").returncode == 0
    assert len(looks) == once


@pytest.mark.costly
def test_a_database_that_freezes_stops_one_look_only(watched: Site, caplog: pytest.LogCaptureFixture) -> None:
    configure("etl-2")
    gtrid = left_by_a_dead_process(watched, *BOTH)
    port = watched.databases.server.port
    with closing(Proxy(port)) as proxy:
        text = (watched.folder / "one.properties").read_text()
        watched.write("one", text.replace(f":{port}/", f":{proxy.port}/").strip())
        proxy.fail_at(b"pg_blocking_pids", NetworkFault.BLACK_HOLE)
        with running(insert) as done:
            until(lambda: "one: what a statement waits for is not known at the moment" in caplog.text)
            assert proxy.failed.is_set()
            proxy.heal()
            until(lambda: reports(caplog))
            watched.write("one", text.strip())
            assert watched.command("scan").returncode == 0
            done.result(60)
    assert gtrid in reports(caplog)[0]


def test_nothing_is_looked_into_where_the_configuration_says_none(watched: Site) -> None:
    configure("etl-2", "none")
    execute("select 1")
    until(lambda: "txpool-waits" not in map(attrgetter("name"), threading.enumerate()))
    configure("etl-2")  # with a connection open
    until(lambda: "txpool-waits" in map(attrgetter("name"), threading.enumerate()))


def test_a_forked_child_has_a_watcher_of_its_own(watched: Site) -> None:
    left_by_a_dead_process(watched, *BOTH)
    process = watched.process(FORKED)
    output, errors = process.communicate(timeout=600)
    assert (process.returncode, output.split()) == (0, ["child", "parent"]), errors
    assert errors.count("has executed for") == 1, errors


#: The parent has a watcher; its child executes what waits.
FORKED = """
    import logging, os, sys, txpool
    logging.basicConfig(level=logging.INFO)
    os.environ["TXPOOL_RECOVERY_BACKOFF"] = "0"
    txpool.configure("txpool.properties", transaction_wait_report="100ms")
    with txpool.connect("one.properties") as connection:
        connection.execute("select 1")
    child = os.fork()
    if child == 0:
        with txpool.transaction():
            txpool.connect("one.properties").execute("insert into t values (1)")
        os.write(1, b"child\\n")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.write(1, b"parent\\n")
"""
