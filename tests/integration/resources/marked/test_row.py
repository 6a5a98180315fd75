"""The row decides: it is committed with the work, or neither is."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from tests.integration.resources.marked.ledger import Ledger, new_gtrid, others
from txpool.errors import ConfigurationError, Error, TransactionRolledBack
from txpool.resources.base import BranchOutcome, Refused
from txpool.resources.driver.local import LocalBranch
from txpool.xid import make_xid


def test_row_is_committed_with_the_work_and_names_the_others(ledger: Ledger) -> None:
    branch, gtrid = ledger.marked()
    assert ledger.rows() == {}
    assert ledger.work() == 0
    branch.record(gtrid, others(gtrid))
    assert ledger.rows() == {gtrid: "commit"}
    assert ledger.work() == 1
    (row,) = ledger.xids.read()
    assert (row.gtrid, row.node, row.committed) == (gtrid, "tests", True)
    assert list(row.branches) == others(gtrid)
    assert ledger.driver.is_clean(ledger.raw)


def test_the_row_has_the_evidence_of_the_votes_though_it_was_written_before_them(ledger: Ledger) -> None:
    branch, gtrid = ledger.marked()
    voted = [record._replace(evidence={"xid": "77", "timeline": "'1'"}) for record in others(gtrid)]
    branch.record(gtrid, voted)
    assert list(ledger.xids.tombstone(gtrid, branch.identity()).branches) == voted
    assert ledger.work() == 1


def test_a_transaction_that_has_ended_is_not_begun_again_by_the_row(ledger: Ledger) -> None:
    """Its own COMMIT would succeed, with nothing in it."""
    branch, gtrid = ledger.marked()
    ledger.raw.rollback()
    with pytest.raises(Refused, match="ended before it"):
        branch.record(gtrid, others(gtrid))
    branch.rollback()
    assert (ledger.rows(), ledger.work()) == ({}, 0)


def test_rollback_leaves_neither(ledger: Ledger) -> None:
    branch, _ = ledger.marked()
    assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert ledger.rows() == {}
    assert ledger.work() == 0
    assert ledger.driver.is_clean(ledger.raw)


def test_alone_it_writes_no_row(ledger: Ledger) -> None:
    branch = ledger.branch()
    assert not branch.idle
    assert branch.commit_one_phase() is BranchOutcome.COMMITTED
    assert branch.idle
    assert ledger.rows() == {}
    assert ledger.work() == 1


def test_failed_commit_is_refused_and_definite(ledger: Ledger) -> None:
    ledger.require_deferred_constraints()
    branch, gtrid = ledger.branch("insert into work values (1, 77)"), new_gtrid()
    branch.mark(gtrid, others(gtrid))
    with pytest.raises(Refused) as caught:
        branch.record(gtrid, others(gtrid))
    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError | psycopg.IntegrityError)
    assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert ledger.rows() == {}
    assert ledger.work() == 0


def test_failed_commit_alone_rolls_back(ledger: Ledger) -> None:
    ledger.require_deferred_constraints()
    branch = ledger.branch("insert into work values (1, 77)")
    assert branch.commit_one_phase() is BranchOutcome.ROLLED_BACK
    assert isinstance(branch.failure, sqlite3.IntegrityError | psycopg.IntegrityError)
    assert ledger.work() == 0


def test_local_branch_must_be_alone(ledger: Ledger) -> None:
    ledger.branch()
    local = LocalBranch("ledger", ledger.driver, ledger.raw)
    local.name(make_xid(new_gtrid(), 0, "ledger"))
    with pytest.raises(Error, match="alone"):
        local.start_prepare()
    local.start_rollback()
    assert local.await_rollback() is BranchOutcome.ROLLED_BACK
    assert ledger.work() == 0


@pytest.mark.parametrize(
    ("statement", "answer", "work"),
    [
        ("commit", BranchOutcome.COMMITTED, 1),
        ("rollback", BranchOutcome.ROLLED_BACK, 0),
    ],
)
def test_users_own_end_is_seen_at_the_mark(ledger: Ledger, statement: str, answer: BranchOutcome, work: int) -> None:
    branch, gtrid = ledger.branch(), new_gtrid()
    ended = ledger.driver.ended_by(ledger.raw, ledger.raw.execute(statement))
    assert ended == statement
    branch.ended_by_sql(ended)
    with pytest.raises(TransactionRolledBack, match="own SQL"):
        branch.mark(gtrid, others(gtrid))
    assert branch.rollback() is answer
    assert ledger.rows() == {}
    assert ledger.work() == work


def test_failed_transaction_is_not_marked(pg: Ledger) -> None:
    branch, gtrid = pg.branch(), new_gtrid()
    with pytest.raises(psycopg.errors.UndefinedTable):
        pg.raw.execute("select * from nowhere")
    with pytest.raises(Refused, match="failed"):
        branch.mark(gtrid, others(gtrid))
    assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert pg.work() == 0


def test_missing_table_says_who_creates_it(bare: Ledger) -> None:
    branch, gtrid = bare.branch(), new_gtrid()
    with pytest.raises(ConfigurationError, match="txpool-recovery init"):
        branch.mark(gtrid, others(gtrid))
    assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert bare.work() == 0
    with pytest.raises(ConfigurationError, match="txpool-recovery init"):
        bare.xids.tombstone(gtrid)
