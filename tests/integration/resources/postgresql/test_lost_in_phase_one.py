"""Sessions and answers that are lost before the vote is known, and interrupts."""

from __future__ import annotations

import signal

import psycopg
import pytest

from tests.integration.resources.postgresql.branches import SLOW, BranchDatabase
from tests.support.waiting import until
from txpool.errors import OperationalError, TransactionRolledBack
from txpool.resources.base import BranchOutcome
from txpool.resources.postgresql.branches.recovery import PostgreSQLBranchRecovery


def test_session_lost_before_prepare(world: BranchDatabase) -> None:
    branch = world.branch()
    world.kill()
    with pytest.raises(TransactionRolledBack, match=r"voted to roll back .* connection was lost"):
        branch.start_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK  # nothing was sent, so nothing can appear
    assert world.databases.prepared() == []
    assert world.rows() == []


def test_session_lost_and_nothing_sent(world: BranchDatabase) -> None:
    branch = world.branch()
    world.kill()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.rows() == []


def test_answer_to_prepare_lost(world: BranchDatabase) -> None:
    branch = world.branch()
    branch.start_prepare()
    until(world.databases.prepared)
    world.cut()
    with pytest.raises(OperationalError):
        branch.await_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.rows() == []


def test_prepare_that_appears_late_is_unknown(world: BranchDatabase) -> None:
    world.databases.execute("one", "drop table work")
    world.databases.execute("one", SLOW)
    branch = world.branch()
    branch.start_prepare()
    world.cut()
    with pytest.raises(OperationalError):
        branch.await_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.UNKNOWN  # it might still appear
    until(world.databases.prepared)  # there it is
    assert PostgreSQLBranchRecovery("one", world.driver).rollback(branch.record) is BranchOutcome.ROLLED_BACK
    assert world.rows() == []


def test_session_killed_while_it_prepares_is_told_by_the_transactions_id(world: BranchDatabase) -> None:
    world.databases.execute("one", "drop table work")
    world.databases.execute("one", SLOW)
    branch = world.branch()
    branch.start_prepare()
    pid = world.raw.info.backend_pid
    asleep = "select 1 from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
    until(lambda: world.databases.rows("one", asleep, [pid]))
    world.kill()
    with pytest.raises(psycopg.errors.AdminShutdown):
        branch.await_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.rows() == []


def test_prepare_answered_after_the_rollback_began(world: BranchDatabase) -> None:
    branch = world.branch()
    branch.start_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.driver.is_clean(world.raw)


def test_keyboard_interrupt_while_prepare_is_awaited(world: BranchDatabase) -> None:
    world.databases.execute("one", "drop table work")
    world.databases.execute("one", SLOW)
    branch = world.branch()
    branch.start_prepare()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            branch.await_prepare()
    finally:
        signal.signal(signal.SIGALRM, previous)
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.rows() == []
    assert world.driver.is_clean(world.raw)


def test_rollback_of_an_interrupted_statement(world: BranchDatabase) -> None:
    branch = world.branch()
    world.raw.pgconn.send_query(b"select pg_sleep(600)")
    world.raw.pgconn.flush()
    # A cancel that overtakes its statement has nothing to stop.
    until(lambda: world.databases.rows("one", "select 1 from pg_stat_activity where wait_event = 'PgSleep'"))
    branch.start_rollback()
    assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    assert not world.driver.is_clean(world.raw)
    until(lambda: not world.databases.rows("one", "select 1 from pg_locks where relation = 'work'::regclass"))
    assert world.rows() == []
