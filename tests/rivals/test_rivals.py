"""Clients of each contender meet faults: a few by default, each at the statement at which a rival is known to fall.

txpool meets others with each seed (TXPOOL_CRASH_SEED). TXPOOL_CRASH_FULL=1 is for all, as `python -m tests.rivals`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.evidence import SEED
from tests.rivals.__main__ import everything
from tests.rivals.contenders import PACKAGES, installed
from tests.rivals.contest import Contest
from tests.rivals.gate import Fault
from tests.support.sampling import FULL

if TYPE_CHECKING:
    from tests.conftest import Databases

pytest.importorskip("greenlet")

#: So many statements a transfer by txpool has at most.
STATEMENTS = 6
#: Two INSERTs, two PREPAREs, and then the second COMMIT PREPARED.
SECOND_COMMIT = 6

#: By contender, the statement in a task behind which a row is there: a COMMIT; a PREPARE, after the record and a COPY.
BEHIND_A_WRITE = {"spark-jdbc": 2, "txpool-spark": 3}

Begin = Callable[[str], Contest]


@pytest.fixture
def begin(databases: Databases, tmp_path: Path) -> Iterator[Begin]:
    begun: list[Contest] = []

    def begin(contender: str) -> Contest:
        if not installed(contender):
            pytest.skip(f"missing: {contender}")
        begun.append(Contest(contender, databases, tmp_path))
        return begun[-1]

    yield begin
    for contest in begun:
        contest.close()


def test_txpool(begin: Begin) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    contest = begin("txpool")
    contest.between_listings()
    for fault in (Fault.KILLED_BEHIND, Fault.REPLY_LOST, Fault.STALLED):
        contest.at_statement(chance.randint(1, STATEMENTS), fault)
    contest.at_random(chance)
    report = contest.report()
    print(f"txpool: {report}")
    assert (report.torn, report.duplicates, report.stuck, report.lost) == ([], [], [], [])


def test_what_was_done_and_is_nowhere_is_lost(begin: Begin, databases: Databases) -> None:
    contest = begin("django")
    assert contest.at_statement(1, Fault.REPLY_LOST)
    for name in ("one", "two"):
        databases.execute(name, "delete from t where number = 1")
    report = contest.report()
    assert (report.lost, report.torn) == ([1], [])


def test_a_recovery_without_a_log_tears_what_is_prepared_between_its_listings(begin: Begin) -> None:
    contest = begin("sqlalchemy-xa-recovery")
    contest.between_listings()
    assert contest.report().torn, "its recovery is not what is said of it: look again"


def test_a_recovery_by_hand_does_not_know_of_the_other_commit(begin: Begin) -> None:
    contest = begin("sqlalchemy")
    assert contest.at_statement(SECOND_COMMIT, Fault.KILLED_BEFORE)
    assert len(contest.report().torn) == 1


def test_without_a_recovery_a_branch_stays_prepared(begin: Begin) -> None:
    contest = begin("transaction")
    assert contest.at_statement(SECOND_COMMIT, Fault.KILLED_BEFORE)
    report = contest.report()
    assert (len(report.stuck), report.torn) == (1, [])


def test_two_commits_in_turn_are_two_outcomes(begin: Begin) -> None:
    contest = begin("django")
    assert contest.at_statement(4, Fault.KILLED_BEFORE)
    assert len(contest.report().torn) == 1


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="missing: TXPOOL_CRASH_FULL=1, as it takes minutes")
@pytest.mark.parametrize("contender", ["spark-jdbc", "txpool-spark"])
def test_spark_tries_the_task_of_a_killed_executor_again(begin: Begin, contender: str) -> None:
    contest = begin(contender)
    assert contest.at_statement(BEHIND_A_WRITE[contender], Fault.EXECUTOR_KILLED)
    report = contest.report()
    print(f"{contender}: {report}")
    assert (report.torn, report.stuck) == ([], [])
    assert len(report.duplicates) == (contender == "spark-jdbc")


@pytest.mark.skipif(not FULL, reason="missing: TXPOOL_CRASH_FULL=1, as it takes minutes")
@pytest.mark.parametrize("contender", PACKAGES)
def test_everything(contender: str, databases: Databases, tmp_path: Path) -> None:
    report = everything(contender, databases, tmp_path, kills=30)
    print(f"{installed(contender)}: {report}")
    if "txpool" in contender:
        assert (report.torn, report.duplicates, report.stuck, report.lost) == ([], [], [], [])
