"""The tombstone and the row under one key: who was first has won."""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pymysql
import pytest

from tests.integration.resources.marked.ledger import Ledger, new_gtrid, others
from txpool.resources.base import BranchOutcome, Refused
from txpool.resources.driver.marks import IDENTITY
from txpool.resources.marked.branch import MarkedTransaction
from txpool.resources.marked.xids import Xids
from txpool.resources.mysql.branches.xa import DEADLOCK


def test_tombstone_wins_over_a_late_row(ledger: Ledger) -> None:
    branch, gtrid = ledger.branch(None), new_gtrid()
    assert not ledger.xids.tombstone(gtrid).committed
    ledger.driver.begin(ledger.raw)
    ledger.raw.execute("insert into work values (1, null)")
    with pytest.raises(Refused, match="abort record"):
        branch.mark(gtrid, others(gtrid))
    assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert ledger.rows() == {gtrid: "abort"}
    assert ledger.work() == 0


def test_tombstone_meets_the_row_and_makes_it_durable(ledger: Ledger) -> None:
    _, gtrid = ledger.decided()
    met = ledger.xids.tombstone(gtrid)
    assert met.committed
    assert list(met.branches) == others(gtrid)
    assert ledger.query_rows(f"select kind, confirmed from xids where xid <> '{IDENTITY}'") == [("commit", 1)]


def test_tombstone_meets_anothers_tombstone(ledger: Ledger) -> None:
    gtrid = new_gtrid()
    assert [ledger.xids.tombstone(gtrid).committed for _ in range(2)] == [False, False]
    assert ledger.query_rows(f"select kind, confirmed from xids where xid <> '{IDENTITY}'") == [("abort", 1)]


def test_tombstone_of_a_row_in_flight_is_undecided_after_the_lock_timeout(ledger: Ledger) -> None:
    branch, gtrid = ledger.marked()
    with pytest.raises((psycopg.errors.LockNotAvailable, sqlite3.OperationalError, pymysql.OperationalError)):
        ledger.xids.tombstone(gtrid)
    branch.record(gtrid, others(gtrid))
    assert ledger.rows() == {gtrid: "commit"}


@pytest.mark.parametrize("commits", [True, False])
def test_tombstone_waits_for_the_row_in_flight(ledger: Ledger, commits: bool) -> None:
    branch, gtrid = ledger.marked()
    patient = Xids("ledger", ledger.driver, lock_timeout=30)
    with ThreadPoolExecutor(1) as pool:
        met = pool.submit(patient.tombstone, gtrid)
        if ledger.sqlite:
            with pytest.raises(TimeoutError):
                met.result(0.2)
        else:
            waiting = "select 1 from pg_locks where not granted"
            if ledger.mysql:
                waiting = "select 1 from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"
            while not ledger.query_rows(waiting):
                assert not met.done(), met.exception()
                time.sleep(0.15 if ledger.mysql else 0)  # InnoDB's view stays as it was while it is read more often
        if commits:
            branch.record(gtrid, others(gtrid))
        else:
            branch.rollback()
        assert met.result(60).committed is commits
    assert ledger.rows() == {gtrid: "commit" if commits else "abort"}
    assert ledger.work() == (1 if commits else 0)


def test_race_of_a_row_with_many_tombstones_has_one_outcome(ledger: Ledger) -> None:
    patient = Xids("ledger", ledger.driver, lock_timeout=30)
    for _ in range(5):
        before = ledger.work()
        branch, gtrid = ledger.branch(None), new_gtrid()
        barrier = threading.Barrier(4)

        def fence(gtrid: str = gtrid, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            while True:
                try:
                    return patient.tombstone(gtrid).committed
                except pymysql.OperationalError as error:
                    if error.args[0] != DEADLOCK:
                        raise  # else undecided, and recovery asks again, too

        def decide(
            branch: MarkedTransaction = branch, gtrid: str = gtrid, barrier: threading.Barrier = barrier
        ) -> bool:
            barrier.wait()
            try:
                while not ledger.raw.in_transaction if ledger.sqlite else False:
                    try:
                        ledger.driver.begin(ledger.raw)
                    except sqlite3.OperationalError:
                        continue
                ledger.raw.execute("insert into work values (1, null)")
                branch.mark(gtrid, others(gtrid))
                branch.record(gtrid, others(gtrid))
            except Refused:
                branch.rollback()
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            fates: list[Future[bool]] = [pool.submit(fence) for _ in range(3)]
            fates.append(pool.submit(decide))
            outcomes = {fate.result(60) for fate in fates}
        assert len(outcomes) == 1
        assert ledger.rows()[gtrid] == ("commit" if outcomes == {True} else "abort")
        assert ledger.work() - before == (1 if outcomes == {True} else 0)
