"""Sessions, answers and servers that are lost once the branch is prepared; and branches that a person has ended."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.integration.resources.postgresql.branches import BranchDatabase, new_xid
from tests.support.waiting import until
from txpool.resources.base import BranchOutcome, PrepareVote
from txpool.resources.deadlines import Deadlines
from txpool.resources.postgresql.branches.branch import PostgreSQLBranch
from txpool.resources.postgresql.branches.recovery import PostgreSQLBranchRecovery


def test_session_lost_between_the_phases(world: BranchDatabase) -> None:
    branch = world.prepared_branch()
    world.kill()
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
    assert world.rows() == [1]
    assert world.databases.prepared() == []


class NotedTimeouts:
    """The driver, which notes how long a connect may take."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.timeouts: list[float | None] = []

    def connect(self, timeout: float | None = None) -> Any:
        self.timeouts.append(timeout)
        return self._driver.connect(timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_the_time_to_wait_begins_once(world: BranchDatabase, verb: str) -> None:
    driver: Any = NotedTimeouts(world.driver)
    raw = driver.connect()
    world.raws.append(raw)
    raw.execute("insert into work values (1)")
    branch = PostgreSQLBranch("one", driver, raw, Deadlines(None, 60.0))
    branch.name(new_xid())
    branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    raw.close()
    before = monotonic()
    getattr(branch, f"start_{verb}")()
    started = monotonic()
    time.sleep(0.2)  # as where other branches are awaited before it
    getattr(branch, f"await_{verb}")()
    (_, timeout) = driver.timeouts
    assert timeout < 60.0 - 0.2 + (started - before)
    assert world.rows() == ([1] if verb == "commit" else [])


@pytest.mark.parametrize(("verb", "rows"), [("commit", [1]), ("rollback", [])])
def test_answer_lost_in_phase_two_is_told_by_the_transactions_id(
    world: BranchDatabase, verb: str, rows: list[int]
) -> None:
    branch = world.prepared_branch()
    getattr(branch, f"start_{verb}")()
    until(lambda: not world.databases.prepared())
    world.cut()
    answer = getattr(branch, f"await_{verb}")()
    assert answer is (BranchOutcome.COMMITTED if rows else BranchOutcome.ROLLED_BACK)
    assert world.rows() == rows


@pytest.mark.parametrize("verb", ["commit", "rollback"])
@pytest.mark.parametrize("by_hand", ["commit", "rollback"])
def test_finished_by_hand(world: BranchDatabase, verb: str, by_hand: str) -> None:
    branch = world.prepared_branch()
    with psycopg.connect(world.databases.dsn("one"), autocommit=True) as dba:
        dba.execute(f"{by_hand} prepared '{branch.record.xid.joined}'")
    getattr(branch, f"start_{verb}")()
    answer = getattr(branch, f"await_{verb}")()
    assert answer is (BranchOutcome.COMMITTED if world.rows() == [1] else BranchOutcome.ROLLED_BACK)
    assert world.rows() == ([1] if by_hand == "commit" else [])


def test_cancels_that_come_late_do_not_stop_phase_two(world: BranchDatabase) -> None:
    raw = world.driver.connect()
    world.raws.append(raw)
    branches = []
    for number in range(60):
        raw.execute("insert into work values (%s)", [number])
        branch = PostgreSQLBranch("one", world.driver, raw)
        branch.name(new_xid())
        branch.start_prepare()
        assert branch.await_prepare() is PrepareVote.COMMIT
        branches.append(branch)
    storm = "do $$ begin loop perform pg_cancel_backend({}); end loop; end $$"
    with psycopg.connect(world.databases.dsn("one"), autocommit=True) as caller, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(caller.execute, sql.SQL(storm).format(raw.info.backend_pid))
        try:
            until(lambda: world.databases.rows("one", "select 1 from pg_stat_activity where query like 'do $$%%'"))
            answers = []
            for branch in branches:
                branch.start_commit()
                answers.append(branch.await_commit())
        finally:
            caller.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                calling.result()
    assert answers == [BranchOutcome.COMMITTED] * 60
    assert world.rows() == list(range(60))


def test_server_restarted_while_prepared(world: BranchDatabase) -> None:
    branch = world.prepared_branch()
    world.databases.server.restart("immediate")
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
    assert world.rows() == [1]


def test_server_that_cannot_be_reached_has_not_answered(world: BranchDatabase) -> None:
    branch = world.prepared_branch()
    world.databases.server.stop("immediate")
    try:
        branch.start_commit()
        assert branch.await_commit() is BranchOutcome.UNKNOWN
    finally:
        world.databases.server.start()
    manager = PostgreSQLBranchRecovery("one", world.driver)
    assert [b.xid for b in manager.recover()] == [branch.record.xid]
    assert manager.commit(branch.record) is BranchOutcome.COMMITTED
    assert world.rows() == [1]
