"""XA START to XA PREPARE: names, votes, and what the server does to a branch before it is prepared."""

from __future__ import annotations

import threading

import pymysql
import pytest

from tests.integration.resources.mysql.branches import BranchDatabase, new_xid
from tests.support.mysql_proxy import Fault
from tests.support.waiting import until
from txpool.errors import NotSupportedError, OperationalError, TransactionRolledBack
from txpool.resources.base import BranchOutcome, PrepareVote
from txpool.resources.mysql.branches import xa
from txpool.xid import TaskName


def test_the_branch_is_named_before_its_first_statement(world: BranchDatabase) -> None:
    branch = world.branch(None)
    assert branch.idle
    world.execute("insert into work values (1, 1)")
    assert not branch.idle
    assert world.rows() == []
    branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    assert world.server.names() == [branch.record.xid.joined]
    assert branch.record.identity
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
    assert world.rows() == [1]
    assert world.server.prepared() == []


@pytest.mark.parametrize(
    "statement", ["insert into work values (2, 2)", "create table x (i int)"], ids=["insert", "create"]
)
def test_where_the_server_refuses_to_begin_nothing_stays(world: BranchDatabase, statement: str) -> None:
    """XA START goes ahead of the first statement, which is executed all the same, or by itself, before that."""
    branch = world.branch(None)
    (raw,) = world.raws
    raw.session.run("insert into work values (1, 1)")  # unseen by anybody: a local transaction is open
    with pytest.raises(world.module.Error) as caught:
        world.execute(statement)
    assert caught.value.args[0] == xa.OUTSIDE
    assert raw.lost, "or what follows would be in no branch"
    with pytest.raises(TransactionRolledBack, match="the connection was lost before the end"):
        branch.start_prepare()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    until(lambda: raw.session_number not in world.sessions())
    assert world.rows() == []
    assert world.server.execute("show tables", database="one") == [("work",)]
    assert world.server.prepared() == []


def test_a_branch_without_a_statement_that_the_server_has_taken(world: BranchDatabase) -> None:
    branch = world.branch(None)
    world.driver.begin(world.raws[-1])
    branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    assert world.server.names() == [branch.record.xid.joined]
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.server.prepared() == []


@pytest.mark.parametrize(
    "statement", ["commit", "rollback", "begin", "start transaction", "create table x (i int)", "set autocommit = 1"]
)
def test_the_server_refuses_what_would_end_the_branch(world: BranchDatabase, statement: str) -> None:
    branch = world.branch()
    with pytest.raises(world.module.Error) as caught:
        world.execute(statement)
    assert caught.value.args[0] in (xa.RMFAIL, xa.OUTSIDE)
    branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.rows() == []


def test_a_procedure_cannot_commit_either(world: BranchDatabase) -> None:
    world.server.execute("create procedure p() begin commit; end", database="one")
    branch = world.branch()
    with pytest.raises(world.module.Error) as caught:
        world.execute("call p()")
    assert caught.value.args[0] == xa.RMFAIL
    branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
    assert world.rows() == [1]


@pytest.mark.parametrize("ends", ["prepared", "one phase", "rolled back", "not ended"])
@pytest.mark.parametrize("committing", ["both phases", "one phase", "rollback"])
def test_a_branch_that_the_program_has_ended_by_hand_may_be_committed(
    world: BranchDatabase, ends: str, committing: str
) -> None:
    """The server takes XA commands of the program's own for its session's branch, and nothing shows which one came.

    Those that are not in sight: in a stored procedure, or prepared as a text.
    """
    branch = world.branch()
    xid = branch.record.xid
    commands = {
        "prepared": [xa.named("prepare", xid), xa.named("commit", xid)],
        "one phase": [xa.one_phase(xid)],
        "rolled back": [xa.named("rollback", xid)],
        "not ended": [],
    }
    for command in (xa.named("end", xid), *commands[ends]):
        world.raws[-1].session.run(command)
    there = ends == "not ended"
    if committing == "one phase":
        assert branch.commit_one_phase() is (BranchOutcome.COMMITTED if there else BranchOutcome.LOST)
    else:
        if committing == "both phases":
            branch.start_prepare()
            with pytest.raises(world.module.Error):
                branch.await_prepare()
        branch.start_rollback()
        assert branch.await_rollback() is (BranchOutcome.ROLLED_BACK if there else BranchOutcome.LOST)
    assert world.rows() == ([1] if ends in ("prepared", "one phase") or (there and committing == "one phase") else [])
    assert world.server.prepared() == []


def test_a_failed_statement_undoes_itself_alone(world: BranchDatabase) -> None:
    branch = world.branch()
    with pytest.raises(world.module.IntegrityError):
        world.execute("insert into work values (1, 1)")
    branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
    assert world.rows() == [1]


def test_savepoints_work_inside(world: BranchDatabase) -> None:
    branch = world.branch()
    for statement in ("savepoint a", "insert into work values (2, 2)", "rollback to a", "release savepoint a"):
        world.execute(statement)
    assert branch.commit_one_phase() is BranchOutcome.COMMITTED
    assert world.rows() == [1]


@pytest.mark.parametrize("one_phase", [True, False])
def test_a_deadlock_that_was_swallowed_is_a_vote_to_roll_back(world: BranchDatabase, one_phase: bool) -> None:
    world.server.execute("insert into work values (1, 0), (2, 0), (3, 0), (4, 0), (5, 0)", database="one")
    branch = world.branch("update work set v = 1 where id = 1")
    other = world.server.connect("one", autocommit=False)
    with other.cursor() as cursor:  # which has changed more rows, so that InnoDB's victim is the branch
        cursor.execute("update work set v = 2 where id > 1")
        waiting = threading.Thread(target=lambda: cursor.execute("update work set v = 2 where id = 1"))
        waiting.start()
        running = "select 1 from information_schema.processlist where info like 'update work set v = 2 where id = 1'"
        until(lambda: world.server.execute(running))
        with pytest.raises(world.module.OperationalError) as caught:
            world.execute("update work set v = 1 where id = 2")
        assert caught.value.args[0] == xa.DEADLOCK
        waiting.join()
    other.commit()
    other.close()
    if one_phase:
        assert branch.commit_one_phase() is BranchOutcome.ROLLED_BACK
        failure = branch.failure
    else:
        with pytest.raises(world.module.Error) as refused:
            branch.start_prepare()
            branch.await_prepare()
        branch.start_rollback()
        assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
        failure = refused.value
    assert any("Deadlock" in note for note in failure.__notes__), failure
    assert world.server.execute("select distinct v from work", database="one") == [(2,)]
    assert world.server.prepared() == []
    raw = world.raws[-1]
    assert (raw.lost, raw.started, raw.in_transaction) == (False, False, False)


def test_what_a_table_without_transactions_keeps_is_told(world: BranchDatabase) -> None:
    world.require_pymysql()
    world.server.execute("create table m (id int) engine=myisam", database="one")
    branch = world.branch()
    cursor = world.execute("insert into m values (1)")
    with pytest.raises(NotSupportedError, match="MyISAM"):
        world.driver.ended_by(world.raws[-1], cursor)
    with pytest.raises(TransactionRolledBack, match="without transactions"):
        branch.start_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.COMMITTED, "the row in m stays, and that is no rollback"
    assert world.rows() == []
    assert world.server.execute("select id from m", database="one") == [(1,)]


def test_a_duplicate_name_is_refused(world: BranchDatabase) -> None:
    first = world.prepared_branch()
    second = world.branch(None)
    second._raw.xid = first.record.xid
    with pytest.raises(world.module.Error) as caught:
        world.execute("insert into work values (2, 2)")
    assert caught.value.args[0] == 1440
    assert second._raw.lost
    first.start_commit()
    assert first.await_commit() is BranchOutcome.COMMITTED
    assert world.rows() == [1]


def test_the_first_name_stays_whoever_decides_later(world: BranchDatabase) -> None:
    branch = world.branch()
    first = branch.record.xid
    for later in (new_xid(), new_xid(decider="ledger"), new_xid(task=TaskName(0, 0, 0, 1))):
        branch.name(later)
        assert branch.record.xid == first
    branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    assert world.server.names() == [first.joined]


def test_a_session_that_is_lost_before_prepare_votes_no(world: BranchDatabase) -> None:
    branch = world.branch()
    world.kill()
    with pytest.raises((TransactionRolledBack, OperationalError)):
        branch.start_prepare()
        branch.await_prepare()
    branch.start_rollback()
    assert branch.await_rollback() in (BranchOutcome.ROLLED_BACK, BranchOutcome.UNKNOWN)
    assert world.rows() == []
    assert world.server.prepared() == []


def test_the_answer_to_prepare_is_lost(world: BranchDatabase) -> None:
    proxy = world.proxy()
    driver = world.driver_of(port=proxy.port)
    branch = world.branch(driver=driver)
    proxy.fail_at(b"xa prepare", Fault.CUT_AFTER)
    with pytest.raises(OperationalError):
        branch.start_prepare()
        branch.await_prepare()
    assert proxy.failed.wait(60)
    branch.start_rollback()
    # The server may be executing PREPARE still: then recovery finds the branch later.
    if branch.await_rollback() is not BranchOutcome.ROLLED_BACK:
        until(lambda: world.recovery.rollback(branch.record) is BranchOutcome.ROLLED_BACK)
    assert world.server.prepared() == []
    assert world.rows() == []


def test_prepare_never_arrives(world: BranchDatabase) -> None:
    proxy = world.proxy()
    driver = world.driver_of(port=proxy.port)
    branch = world.branch(driver=driver)
    proxy.fail_at(b"xa prepare", Fault.CUT_BEFORE)
    with pytest.raises(OperationalError):
        branch.start_prepare()
        branch.await_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.UNKNOWN, "it may still appear, as far as is known here"
    assert world.server.prepared() == []


def test_an_interrupt_between_a_command_and_its_answer_leaves_no_stale_answer(world: BranchDatabase) -> None:
    world.require_pymysql()
    branch = world.branch()
    raw = world.raws[-1]
    raw._execute_command(3, b"select 'stale'")  # sent, and then the interrupt came
    assert not world.driver.is_open(raw)
    with pytest.raises(TransactionRolledBack):
        branch.start_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.rows() == []
    with pytest.raises(world.module.Error):
        raw.query("select 1")


def test_an_unbuffered_result_that_was_left_does_not_disturb(world: BranchDatabase) -> None:
    world.require_pymysql()
    world.server.execute(
        "insert into work select seq, 0 from seq_1_to_2000"
        if world.server.is_mariadb
        else "insert into work values (5, 0), (6, 0)",
        database="one",
    )
    branch = world.branch("insert into work values (9001, 1)")
    cursor = world.raws[-1].cursor(pymysql.cursors.SSCursor)
    cursor.execute("select id from work")
    assert cursor.fetchone()
    with pytest.warns(UserWarning, match="left incomplete"):
        branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
    assert 9001 in world.rows()


def test_a_command_never_takes_the_answer_of_one_before_it(world: BranchDatabase) -> None:
    world.require_pymysql()
    raw = world.driver.connect()
    world.raws.append(raw)
    raw._execute_command(3, b"select 'stale'")  # sent, and then the interrupt came
    with pytest.raises(world.module.OperationalError, match="interrupted"):
        raw.query("select 'fresh'")
    assert raw.session.is_alive() is False


@pytest.mark.parametrize("statement", ["insert into work values (1, 1)", None])
def test_a_rollback_keeps_no_session_that_the_server_has_ended(world: BranchDatabase, statement: str | None) -> None:
    branch = world.branch(statement)
    raw = world.raws[-1]
    world.kill()
    until(lambda: not raw.session.is_alive())
    assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert raw.lost
    assert world.rows() == []
