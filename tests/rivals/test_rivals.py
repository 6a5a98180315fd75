"""Kills in the middle of commits, of txpool's asynchronous clients and of those of sqlalchemy-xa-recovery.

That one has no log of decisions: its recovery concludes from which branches are prepared now. TXPOOL_CRASH_FULL=1 adds
kills at random times.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.evidence import SEED
from tests.rivals.contest import Contest

if TYPE_CHECKING:
    from tests.conftest import Databases

pytest.importorskip("greenlet")

RANDOM_KILLS = 30 if os.environ.get("TXPOOL_CRASH_FULL") == "1" else 1
RIVAL = "sqlalchemy-xa-recovery"


@pytest.mark.parametrize("contender", ["txpool", RIVAL])
def test_clients_that_are_killed(contender: str, databases: Databases, tmp_path: Path) -> None:
    if contender == RIVAL:
        pytest.importorskip("sqlalchemy_xa_recovery")
    print(f"seed {SEED}")
    contest = Contest(contender, databases, tmp_path)
    contest.planned()
    planned = contest.report()
    print(f"{contender}, planned: {planned}")
    chance = random.Random(SEED)
    for _ in range(RANDOM_KILLS):
        contest.at_random(chance)
    report = contest.report()
    print(f"{contender}: {report}")
    assert (report.duplicates, report.stuck) == ([], [])
    if contender == "txpool":
        assert report.torn == []
    else:
        assert planned.torn == [0], "its recovery is not what is said of it here: look again"
