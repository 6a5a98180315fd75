"""Rows that have done their work are deleted: lazily, our own, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.integration.resources.marked.ledger import Ledger, new_gtrid, others
from txpool import failpoints
from txpool.errors import LogError
from txpool.resources.base import Refused
from txpool.resources.marked.cleanup import CleanupQueue, pending
from txpool.resources.marked.xids import Xids

if TYPE_CHECKING:
    from tests.conftest import Databases


def test_finished_rows_ride_in_the_next_marked_transaction(ledger: Ledger) -> None:
    first, old = ledger.decided()
    first.forget(old)
    assert ledger.rows() == {old: "commit"}
    _, new = ledger.decided()
    assert ledger.rows() == {new: "commit"}
    assert len(ledger.cleanup) == 0


@pytest.mark.parametrize("end", ["rollback", "refused", "unknown"])
def test_rides_of_a_transaction_that_does_not_commit_are_put_back(ledger: Ledger, end: str) -> None:
    if end == "refused":
        ledger.require_deferred_constraints()
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
    blocker = ledger.connect()
    ledger.driver.begin(blocker)
    blocker.execute("update xids set confirmed = 5")
    cleanup.add(old)
    assert "later" in caplog.text
    blocker.rollback()
    blocker.close()
    assert ledger.rows() == {old: "commit"}
    cleanup.flush()
    assert ledger.rows() == {}


def test_a_batch_that_fails_is_tried_again_with_the_next_one(
    pg: Ledger, databases: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    """Not with each transaction: each would wait for a database that does not answer."""
    cleanup = CleanupQueue(pg.xids, batch_size=3)
    gtrids = [pg.decided()[1] for _ in range(9)]
    databases.execute("one", "alter table xids rename to away")
    for gtrid in gtrids[:8]:
        cleanup.add(gtrid)
    assert caplog.text.count("will be later") == 2
    databases.execute("one", "alter table away rename to xids")
    cleanup.add(gtrids[8])
    assert pg.rows() == {}
    assert not cleanup


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
    with closing(ledger.connect()) as raw:
        raw.execute(
            "insert into xids (xid, transaction_manager_id, action_uid, kind, branches) "
            "values ('narayana', 'n', 'u', 'commit', '?')"
        )
        raw.commit()
    assert [row.gtrid for row in ledger.xids.read()] == [gtrid]


def test_35_a_pointer_goes_after_its_row_and_where_the_log_fails_later(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    purged: list[str] = []
    rows_then: list[int] = []
    working = False

    def purge(gtrids: Iterable[str]) -> None:
        rows_then.append(len(ledger.rows()))
        if not working:
            raise LogError("the disk is full")
        purged.extend(gtrids)

    _, first = ledger.decided()
    cleanup = CleanupQueue(ledger.xids, immediate=True)
    cleanup.add_pointed(first, purge)
    assert "later" in caplog.text
    assert (ledger.rows(), purged, cleanup.points) == ({}, [], True)
    assert cleanup in pending()
    working = True
    _, second = ledger.decided()
    cleanup.add(second)
    assert (ledger.rows(), purged, cleanup.points) == ({}, [first], False)
    assert rows_then == [0, 0]
    assert cleanup not in pending()


def test_35_a_pointer_whose_row_rides_in_the_next_transaction_waits_for_a_batch(ledger: Ledger) -> None:
    purged: list[str] = []
    gtrids = []
    for _ in range(3):
        branch, gtrid = ledger.decided()
        branch.forget_pointed(gtrid, purged.extend)
        gtrids.append(gtrid)
    assert ledger.rows() == {gtrids[2]: "commit"}
    assert (purged, ledger.cleanup.points) == ([], True)
    branch, gtrid = ledger.decided()  # which takes the third's row with it: three pointers wait, and that is a batch
    branch.forget(gtrid)
    assert purged == gtrids
    assert (ledger.rows(), ledger.cleanup.points) == ({}, False)


def test_35_a_ride_that_does_not_commit_leaves_row_and_pointer(ledger: Ledger) -> None:
    purged: list[str] = []
    first, old = ledger.decided()
    first.forget_pointed(old, purged.extend)
    branch, gtrid = ledger.branch("insert into work values (1, null)"), new_gtrid()
    branch.mark(gtrid, others(gtrid))
    branch.rollback()
    assert (set(ledger.rows()), purged) == ({old}, [])
    ledger.cleanup.flush()
    assert (ledger.rows(), purged) == ({}, [old])
