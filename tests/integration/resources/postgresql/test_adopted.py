"""Adopted branches: prepared elsewhere, ended here over one connection."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.resources.postgresql.branches import BranchDatabase, new_xid
from tests.support.waiting import until
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.branches import adopted as adopted_branches
from txpool.resources.branches.adopted import AdoptedBranch, PhaseTwoConnections
from txpool.resources.deadlines import Deadlines
from txpool.resources.driver.making import make_driver
from txpool.resources.postgresql.branches.phase_two import PostgreSQLPhaseTwo
from txpool.resources.postgresql.branches.recovery import PostgreSQLBranchRecovery
from txpool.resources.postgresql.driver import PsycopgDriver
from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection


def adopted(world: BranchDatabase, count: int) -> list[AdoptedBranch]:
    channel = PhaseTwoConnections(PostgreSQLPhaseTwo, world.driver)
    records = []
    for number in range(count):
        records.append(world.prepared_branch(f"insert into work values ({number})").record)
        world.raw.close()
    return [AdoptedBranch(record, channel) for record in records]


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_adopted_branches_share_one_connection(world: BranchDatabase, verb: str) -> None:
    branches = adopted(world, 5)
    for branch in branches:
        getattr(branch, f"start_{verb}")()
    mine = "select count(*) from pg_stat_activity where datname = 'one' and pid <> pg_backend_pid()"
    until(lambda: world.databases.rows("one", mine) == [(1,)])
    answers = [getattr(branch, f"await_{verb}")() for branch in branches]
    assert answers == [BranchOutcome.COMMITTED if verb == "commit" else BranchOutcome.ROLLED_BACK] * 5
    assert world.rows() == (list(range(5)) if verb == "commit" else [])
    assert world.databases.prepared() == []
    until(lambda: world.databases.rows("one", mine) == [(0,)])


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_many_adopted_branches_end_over_several_connections(
    world: BranchDatabase, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopted_branches, "BRANCHES_EACH", 4)
    world.driver.phase_two_connections = 3  # type: ignore[attr-defined]
    branches = adopted(world, 20)
    for branch in branches:
        getattr(branch, f"start_{verb}")()
    mine = "select count(*) from pg_stat_activity where datname = 'one' and pid <> pg_backend_pid()"
    until(lambda: world.databases.rows("one", mine) == [(3,)])
    answers = [getattr(branch, f"await_{verb}")() for branch in branches]
    assert answers == [BranchOutcome.COMMITTED if verb == "commit" else BranchOutcome.ROLLED_BACK] * 20
    assert world.rows() == (list(range(20)) if verb == "commit" else [])
    assert world.databases.prepared() == []
    until(lambda: world.databases.rows("one", mine) == [(0,)])


class _Stalling(PsycopgDriver):
    """Each session that it opens stands still on the server."""

    opened: list[int]

    def connect(self, timeout: float | None = None) -> PsycopgRawConnection:
        raw = super().connect(timeout)
        self.opened.append(raw.info.backend_pid)
        os.kill(raw.info.backend_pid, signal.SIGSTOP)
        return raw


def test_a_server_that_hangs_is_waited_for_once_whatever_it_holds(world: BranchDatabase) -> None:
    driver = _Stalling(world.driver._settings)  # type: ignore[attr-defined]
    driver.opened = []
    channel = PhaseTwoConnections(PostgreSQLPhaseTwo, driver, Deadlines(None, 0.2))
    branches = [AdoptedBranch(branch.record, channel) for branch in adopted(world, 3)]
    for branch in branches:
        branch.start_commit()
    assert [branch.await_commit() for branch in branches] == [BranchOutcome.UNKNOWN] * 3
    assert len(driver.opened) == 1
    assert len(world.databases.prepared()) == 3
    os.kill(driver.opened[0], signal.SIGCONT)
    manager = PostgreSQLBranchRecovery("one", world.driver)
    # The first may have been committed meanwhile, by what had been sent.
    assert {manager.commit(branch.record) for branch in branches} <= {BranchOutcome.COMMITTED, BranchOutcome.UNKNOWN}
    until(lambda: manager.commit(branches[0].record) is BranchOutcome.COMMITTED)
    assert world.rows() == [0, 1, 2]


def test_adopted_branches_do_not_wait_for_ever_for_a_connection() -> None:
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db"
        driver = make_driver(DataSourceSettings.load(name="one", driver="psycopg", url=url))
        branch = AdoptedBranch(
            BranchRecord(new_xid(), "one", ""), PhaseTwoConnections(PostgreSQLPhaseTwo, driver, Deadlines(None, 0.2))
        )
        pool.submit(branch.start_commit).result(60)
        assert branch.await_commit() is BranchOutcome.UNKNOWN


def test_adopted_branches_outlive_a_lost_connection(world: BranchDatabase) -> None:
    branches = adopted(world, 4)
    for branch in branches:
        branch.start_commit()
    assert branches[1].await_commit() is BranchOutcome.COMMITTED
    world.databases.execute(
        "one",
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()",
    )
    assert [branches[n].await_commit() for n in (0, 2, 3)] == [BranchOutcome.COMMITTED] * 3
    assert world.rows() == [0, 1, 2, 3]


def test_adopted_branches_of_a_server_that_is_down_are_left_to_recovery(world: BranchDatabase) -> None:
    branches = adopted(world, 3)
    world.databases.server.stop("immediate")
    try:
        for branch in branches:
            branch.start_commit()
        assert [branch.await_commit() for branch in branches] == [BranchOutcome.UNKNOWN] * 3
    finally:
        world.databases.server.start()
    assert len(world.databases.prepared()) == 3
