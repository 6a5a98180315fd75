"""One phase: the only branch commits by itself, and says what has become of it."""

from __future__ import annotations

import signal

import psycopg
import pytest

from tests.integration.resources.postgresql.branches import SLOW, BranchDatabase
from txpool.errors import OperationalError
from txpool.resources.base import BranchOutcome


def test_one_phase(world: BranchDatabase) -> None:
    branch = world.branch()
    assert branch.commit_one_phase() is BranchOutcome.COMMITTED
    assert world.rows() == [1]


def test_one_phase_of_a_failed_transaction(world: BranchDatabase) -> None:
    branch = world.branch()
    with pytest.raises(psycopg.errors.UndefinedTable):
        world.raw.execute("select * from nowhere")
    assert branch.commit_one_phase() is BranchOutcome.ROLLED_BACK
    assert "failed" in str(branch.failure)
    assert world.rows() == []


def test_one_phase_that_the_database_refuses(world: BranchDatabase) -> None:
    branch = world.branch("insert into work values (1), (1)")
    assert branch.commit_one_phase() is BranchOutcome.ROLLED_BACK
    assert isinstance(branch.failure, psycopg.errors.UniqueViolation)
    assert world.rows() == []


def test_one_phase_over_a_session_that_is_known_to_be_dead(world: BranchDatabase) -> None:
    branch = world.branch()
    world.kill()
    assert branch.commit_one_phase() is BranchOutcome.ROLLED_BACK
    assert world.rows() == []


def test_one_phase_whose_answer_is_lost(world: BranchDatabase) -> None:
    world.databases.execute("one", "drop table work")
    world.databases.execute("one", SLOW)
    branch = world.branch()
    pid = world.raw.info.backend_pid
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    previous = signal.signal(
        signal.SIGALRM, lambda *_: world.databases.execute("one", f"select pg_terminate_backend({pid})")
    )
    try:
        assert branch.commit_one_phase() is BranchOutcome.UNKNOWN
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert isinstance(branch.failure, OperationalError)


@pytest.mark.parametrize(
    ("statement", "answer", "rows"),
    [
        ("commit", BranchOutcome.COMMITTED, [1, 2]),
        ("rollback", BranchOutcome.ROLLED_BACK, []),
    ],
)
def test_one_phase_after_the_users_own_end(
    world: BranchDatabase, statement: str, answer: BranchOutcome, rows: list[int]
) -> None:
    branch = world.branch()
    branch.ended_by_sql(world.driver.ended_by(world.raw, world.raw.execute(statement)) or "")
    world.raw.execute("insert into work values (2)")
    assert branch.commit_one_phase() is answer
    assert world.rows() == rows
