"""Rows that have done their work are deleted: lazily, our own, and no others."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from tests.integration.resources.marked.ledger import Ledger, new_gtrid, others
from txpool import failpoints
from txpool.resources.base import Refused
from txpool.resources.cleanup import CleanupQueue
from txpool.resources.xids import Xids


def test_finished_rows_ride_in_the_next_marked_transaction(ledger: Ledger) -> None:
    first, old = ledger.decided()
    first.forget(old)
    assert ledger.rows() == {old: "commit"}
    _, new = ledger.decided()
    assert ledger.rows() == {new: "commit"}
    assert len(ledger.cleanup) == 0


@pytest.mark.parametrize("end", ["rollback", "refused", "unknown"])
def test_rides_of_a_transaction_that_does_not_commit_are_put_back(ledger: Ledger, end: str) -> None:
    first, old = ledger.decided()
    first.forget(old)
    branch, gtrid = ledger.branch(f"insert into work values (1, {77 if end == 'refused' else 'null'})"), new_gtrid()
    branch.mark(gtrid, others(gtrid))
    if end == "refused":
        with pytest.raises(Refused):
            branch.record(gtrid, others(gtrid))
    if end == "unknown":
        branch.abort(gtrid)
    branch.rollback()
    assert old in ledger.rows()
    ledger.cleanup.flush()
    assert old not in ledger.rows()


def test_rides_wait_where_the_transaction_cannot_see_them(pg: Ledger) -> None:
    branch, gtrid = pg.branch(None), new_gtrid()
    late = pg.raw
    late.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    late.execute("insert into work values (2, null)")
    first, old = pg.decided()
    first.forget(old)
    branch.mark(gtrid, others(gtrid))
    branch.record(gtrid, others(gtrid))
    assert set(pg.rows()) == {old, gtrid}
    pg.cleanup.flush()
    assert set(pg.rows()) == {gtrid}


def test_batches_and_immediate_cleanup(ledger: Ledger) -> None:
    decided = [ledger.decided() for _ in range(3)]
    counts = []
    for branch, gtrid in decided:
        branch.forget(gtrid)
        counts.append(len(ledger.rows()))
    assert counts == [3, 3, 0]
    ledger.cleanup = CleanupQueue(ledger.xids, immediate=True)
    branch, gtrid = ledger.decided()
    with failpoints.arming("marked.forget", "count"):
        branch.forget(gtrid)
        assert failpoints.reached("marked.forget") == 1
    assert ledger.rows() == {}


def test_cleaning_that_fails_is_done_later(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    _, old = ledger.decided()
    cleanup = CleanupQueue(ledger.xids, immediate=True)
    blocker = ledger.driver.connect()
    ledger.driver.begin(blocker)
    blocker.execute("update xids set confirmed = 5")
    cleanup.add(old)
    assert "later" in caplog.text
    blocker.rollback()
    blocker.close()
    assert ledger.rows() == {old: "commit"}
    cleanup.flush()
    assert ledger.rows() == {}


def test_other_nodes_rows_are_never_deleted(ledger: Ledger) -> None:
    mine, theirs = new_gtrid("tests"), new_gtrid("others")
    for gtrid in (mine, theirs):
        ledger.xids.tombstone(gtrid)
    Xids("ledger", ledger.driver, nodes=()).delete([mine, theirs])
    assert set(ledger.rows()) == {mine, theirs}
    Xids("ledger", ledger.driver, nodes={"tests"}).delete([mine, theirs])
    assert set(ledger.rows()) == {theirs}


def test_rows_of_strangers_are_not_read(ledger: Ledger) -> None:
    _, gtrid = ledger.decided()
    with closing(ledger.driver.connect()) as raw:
        raw.execute(
            "insert into xids (xid, transaction_manager_id, action_uid, kind, branches) "
            "values ('narayana', 'n', 'u', 'commit', '?')"
        )
        raw.commit()
    assert [row.gtrid for row in ledger.xids.read()] == [gtrid]
