"""What a pass costs grows with the number of branches, and no faster: a Spark write has thousands under one name."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from recovery.operator.listing import in_doubt
from recovery.scan.datasources.datasources import RecoveryDatasources
from recovery.scan.modules.orphans import NodeFilter, all_filters, poll
from recovery.scan.reading import take_snapshot
from recovery.scan.snapshot import Snapshot
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import Role
from txpool.resources.recovery_access import PreparedBranch
from txpool.xid import TaskName, Xid, make_gtrid, make_xid


class Many:
    """A datasource, and its resource manager, that lists these branches."""

    name, mode, role = "one", "xa", Role.PREPARED

    def __init__(self, xids: list[Xid], roles: frozenset[str] | None) -> None:
        self._prepared = [PreparedBranch(xid, 1.0, "mallory", roles) for xid in xids]

    def branch_recovery(self) -> Any:
        return self

    def branch_rows(self, **_: Any) -> None:
        return None

    staging = branch_rows

    def identity(self) -> str:
        return "1/1"

    def recover(self) -> list[PreparedBranch]:
        return self._prepared

    def logins(self) -> frozenset[str]:
        return frozenset({"8"})


def calls(count: int, spark: bool, roles: frozenset[str] | None) -> int:
    """How many functions are called to look at so many branches and to vote on each."""
    log = MemoryLog(MemoryDisk("etl-1"), node="etl-1")
    numbers = (1 if spark else each for each in range(count))
    gtrids = [make_gtrid("etl-1", log.incarnation, number) for number in numbers]
    tasks = [TaskName(1, each, 0, 1) if spark else None for each in range(count)]
    many: Any = Many([make_xid(gtrid, 0, "one", task=task) for gtrid, task in zip(gtrids, tasks, strict=True)], roles)
    called = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal called
        called += event == "call"

    sites = RecoveryDatasources([many], nodes=["etl-1"], lock_timeout=1)
    sys.setprofile(note)
    try:
        evidence = take_snapshot(log, sites, fence=False)
        in_doubt(evidence, sites)
        vote_on_all(evidence)
    finally:
        sys.setprofile(None)
    return called


def vote_on_all(evidence: Snapshot) -> None:
    filters = all_filters([NodeFilter()])
    for gtrid in evidence.gtrids:
        for branch in evidence.listed_branches(gtrid):
            poll(filters, evidence, branch.xid)
            evidence.was_listed(branch.record)


@pytest.mark.parametrize("roles", [None, frozenset({"7"})], ids=["ours", "foreign"])
@pytest.mark.parametrize("spark", [True, False], ids=["one transaction", "a transaction each"])
def test_ten_times_as_many_branches_cost_ten_times_as_much(spark: bool, roles: frozenset[str] | None) -> None:
    assert calls(400, spark, roles) < 12 * calls(40, spark, roles)
