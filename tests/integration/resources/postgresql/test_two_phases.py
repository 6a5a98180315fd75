"""Both phases as they should be, what is a vote to roll back, and what is sent before what is answered."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from tests.integration.resources.postgresql.branches import BranchDatabase, new_xid
from tests.support.waiting import until
from txpool import failpoints
from txpool.errors import IntegrityError, TransactionRolledBack
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareVote
from txpool.resources.postgresql.branches.recovery import PostgreSQLBranchRecovery


def test_failed_transaction_votes_no_where_psycopg_says_yes(world: BranchDatabase) -> None:
    branch = world.branch()
    with pytest.raises(psycopg.errors.UndefinedTable):
        world.raw.execute("select * from nowhere")
    # The program has swallowed the error, and goes on to commit.
    with pytest.raises(TransactionRolledBack, match="voted to roll back") as caught:
        branch.start_prepare()
    assert caught.value.gtrid == branch.record.xid.gtrid
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.rows() == []
    assert world.driver.is_clean(world.raw)

    with closing(world.driver.connect()) as plain:  # the yes that is not one
        plain.tpc_begin("gtrid")
        plain.execute("insert into work values (1)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            plain.execute("select * from nowhere")
        plain.tpc_prepare()
        assert world.databases.prepared() == []


def test_prepare_and_commit(world: BranchDatabase) -> None:
    branch = world.prepared_branch()
    record = branch.record
    assert record.identity == world.raw.identity
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
    assert world.rows() == [1]
    assert world.databases.prepared() == []
    status = world.databases.rows("one", "select pg_xact_status(%s::text::xid8)", [record.evidence["xid"]])
    assert status == [("committed",)]
    assert world.driver.is_clean(world.raw)


def test_prepare_and_roll_back(world: BranchDatabase) -> None:
    branch = world.prepared_branch()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.rows() == []
    assert world.databases.prepared() == []


def test_branch_is_idle_until_something_is_executed(world: BranchDatabase) -> None:
    branch = world.branch(None)
    assert branch.idle
    world.raw.execute("select 1")
    assert not branch.idle
    world.raw.rollback()


@pytest.mark.parametrize(
    ("statement", "answer", "rows"),
    [("commit", BranchOutcome.COMMITTED, [1]), ("rollback", BranchOutcome.ROLLED_BACK, [])],
)
def test_users_own_end_of_the_transaction_is_a_no(
    world: BranchDatabase, statement: str, answer: BranchOutcome, rows: list[int]
) -> None:
    branch = world.branch()
    ended = world.driver.ended_by(world.raw, world.raw.execute(statement))
    assert ended is not None
    branch.ended_by_sql(ended)
    assert not branch.idle
    world.raw.execute("insert into work values (2)")
    with pytest.raises(TransactionRolledBack, match="own SQL"):
        branch.start_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is answer
    assert world.rows() == rows
    assert world.databases.prepared() == []


def test_transaction_that_ended_unseen_is_a_no(world: BranchDatabase) -> None:
    branch = world.branch()
    world.raw.execute("commit")
    with pytest.raises(TransactionRolledBack):
        branch.start_prepare()
    assert world.databases.prepared() == []


def test_deferred_constraint_is_a_no_at_prepare(world: BranchDatabase) -> None:
    branch = world.branch("insert into work values (1), (1)")
    branch.start_prepare()
    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        branch.await_prepare()
    assert isinstance(caught.value, IntegrityError)
    assert branch.record.xid.gtrid in caught.value.__notes__[0]
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.driver.is_clean(world.raw)


def test_no_slot_left_is_a_no_and_the_manager_frees_the_slots(world: BranchDatabase) -> None:
    ((slots,),) = world.databases.rows("one", "select current_setting('max_prepared_transactions')::int")
    holder = world.branch(None)
    for number in range(slots):
        world.raw.execute("insert into work values (%s)", [number])
        holder.name(new_xid())
        holder.start_prepare()
        assert holder.await_prepare() is PrepareVote.COMMIT
    branch = world.branch("insert into work values (-1)")
    branch.start_prepare()
    with pytest.raises(psycopg.errors.OutOfMemory):
        branch.await_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    manager = PostgreSQLBranchRecovery("one", world.driver)
    listed = manager.recover()
    assert sorted(b.xid.joined for b in listed) == world.databases.prepared()
    assert {b.owner for b in listed} == {world.databases.server.user}
    assert {manager.rollback(BranchRecord(b.xid, "one")) for b in listed} == {BranchOutcome.ROLLED_BACK}
    assert world.databases.prepared() == []
    assert world.rows() == []


def test_both_databases_work_before_any_answer_is_read(world: BranchDatabase) -> None:
    world.databases.execute("two", "create table work (id int)")
    other = BranchDatabase(world.databases, "two")
    branches = [world.branch(), other.branch()]
    for branch in branches:
        branch.start_prepare()
    names = sorted(branch.record.xid.joined for branch in branches)
    until(lambda: world.databases.prepared() == names)
    assert [branch.await_prepare() for branch in branches] == [PrepareVote.COMMIT, PrepareVote.COMMIT]
    for branch in branches:
        branch.start_commit()
    until(lambda: world.databases.prepared() == [])
    assert [branch.await_commit() for branch in branches] == [BranchOutcome.COMMITTED, BranchOutcome.COMMITTED]
    assert world.rows() == other.rows() == [1]
    other.raw.close()


def test_failpoints_strike_after_the_message_was_sent(world: BranchDatabase) -> None:
    branch = world.branch()
    with failpoints.arming("branch.prepare-sent"), pytest.raises(failpoints.Failpoint):
        branch.start_prepare()
    until(world.databases.prepared)
    with failpoints.arming("branch.rollback-sent", "count"):
        branch.start_rollback()
        assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
        assert failpoints.reached("branch.rollback-sent") == 1
    assert world.databases.prepared() == []
    branch = world.prepared_branch()
    with failpoints.arming("branch.commit-sent"), pytest.raises(failpoints.Failpoint):
        branch.start_commit()
    until(lambda: world.rows() == [1])
    assert branch.await_commit() is BranchOutcome.COMMITTED
