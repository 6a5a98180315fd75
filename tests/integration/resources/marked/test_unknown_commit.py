"""A commit whose answer was lost, and the tombstone that establishes the truth."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from tests.integration.resources.marked.ledger import Ledger, others
from txpool import failpoints
from txpool.resources.base import BranchOutcome, Refused, Resolution


@pytest.mark.parametrize(
    ("point", "settled"), [("marked.commit", Resolution.ABORTED), ("marked.committed", Resolution.COMMITTED)]
)
def test_abort_establishes_the_truth(ledger: Ledger, point: str, settled: Resolution) -> None:
    branch, gtrid = ledger.marked()
    with failpoints.arming(point), pytest.raises(failpoints.Failpoint):
        branch.record(gtrid, others(gtrid))
    assert branch.abort(gtrid) is settled
    assert branch.abort(gtrid) is settled
    committed = settled is Resolution.COMMITTED
    if not committed:
        assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert ledger.rows() == {gtrid: "commit" if committed else "abort"}
    assert ledger.work() == (1 if committed else 0)


def test_session_lost_in_commit_is_unknown_until_the_tombstone(pg: Ledger) -> None:
    with closing(pg.connect()) as raw:
        raw.execute(
            "create function nap() returns trigger language plpgsql as 'begin perform pg_sleep(600); return null; end'"
        )
        raw.execute(
            "create constraint trigger slow after insert on work deferrable initially deferred "
            "for each row execute function nap()"
        )
        raw.commit()
    branch, gtrid = pg.marked()
    pid = pg.raw.info.backend_pid
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(branch.record, gtrid, others(gtrid))
        while pg.query_rows(f"select wait_event from pg_stat_activity where pid = {pid}") != [("PgSleep",)]:
            assert not recording.done()
        pg.query_rows(f"select pg_terminate_backend({pid}, 5000)")
        with pytest.raises(psycopg.errors.AdminShutdown):
            recording.result(60)
    assert branch.abort(gtrid) is Resolution.ABORTED
    assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert pg.rows() == {gtrid: "abort"}
    assert pg.work() == 0


def test_session_that_died_before_commit_is_definite(pg: Ledger) -> None:
    branch, gtrid = pg.marked()
    pg.query_rows(f"select pg_terminate_backend({pg.raw.info.backend_pid}, 5000)")
    with pytest.raises(Refused, match="lost"):
        branch.record(gtrid, others(gtrid))
    assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert pg.rows() == {}
