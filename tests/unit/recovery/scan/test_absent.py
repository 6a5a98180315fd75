"""A branch that is gone when recovery is to end it: what it counts as (rule 34)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.models.recovery import RecoveryWorld, logged, marked, pointed, unaccounted, world_after
from tests.models.recovery_databases import ModelDatabase
from txpool.resources.base import BranchOutcome, BranchRecord

Steps = Callable[[RecoveryWorld], Iterator[str]]


def test_another_servers_answer_is_no_answer() -> None:
    world = world_after(logged, "decided")
    prepared, world.b.prepared = world.b.prepared, {}
    world.b.server = "elsewhere"
    report = world.scan()
    assert world.disk.outcomes
    assert "elsewhere" in report.pending[0].reason
    world.b.prepared, world.b.server = prepared, "server-of-b"
    world.scan()
    assert world.outcomes() == {"committed"}


@pytest.mark.parametrize("steps", [logged, marked, pointed])
def test_34_absent_on_the_server_that_prepared_it_counts_as_committed(steps: Steps) -> None:
    """Recovery never knows that it is the first: a COMMIT may have been executed, and its answer lost."""
    world = world_after(steps, "b ended")
    world.a.tells = world.b.tells = False
    report = world.scan()
    assert not report.heuristics
    assert not report.pending
    assert report.committed == ()
    assert world.is_clean()
    assert not world.scan().heuristics


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("steps", [logged, marked, pointed])
def test_34_a_branch_that_a_failover_has_lost_is_a_hazard_once(steps: Steps, tells: bool) -> None:
    world = world_after(steps, "decided")
    world.b.tells = tells
    world.b.fail_over(losing=True)
    report = world.scan()
    assert [(h.decided, h.ended, h.datasource) for h in report.heuristics] == [("commit", "lost", "b")]
    assert not world.scan().heuristics
    assert len(world.log.heuristics()) == 1
    assert world.is_clean()


@pytest.mark.parametrize("steps", [logged, marked, pointed])
def test_34_a_branch_that_a_failover_has_kept_commits(steps: Steps) -> None:
    world = world_after(steps, "decided")
    world.b.fail_over(losing=False)
    assert not world.scan().heuristics
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


@pytest.mark.parametrize("missing", ["identity", "generation"])
def test_34_a_record_that_says_nothing_of_its_server_proves_nothing(missing: str) -> None:
    world = world_after(logged, "b ended")
    decided = world.disk.outcomes[world.gtrid]
    assert decided is not None
    bare = [
        each._replace(**({"identity": ""} if missing == "identity" else {"evidence": {}})) for each in decided.branches
    ]
    world.disk.outcomes[world.gtrid] = replace(decided, branches=tuple(bare))
    report = world.scan()
    assert [h.ended for h in report.heuristics] == ["lost", "lost"]
    assert world.is_clean()


class Believing(ModelDatabase):
    """A resource manager that takes any branch that is gone for ABSENT, whatever the server is."""

    def _finish(self, record: BranchRecord, wanted: BranchOutcome) -> BranchOutcome:
        outcome = super()._finish(record, wanted)
        return BranchOutcome.ABSENT if outcome is BranchOutcome.LOST else outcome


def test_34_absent_without_an_identity_is_not_believed() -> None:
    world = world_after(logged, "b ended")
    world.b = Believing("b", world.calls)
    world.recovery = world.recoverer()
    decided = world.disk.outcomes[world.gtrid]
    assert decided is not None
    unknown = decided.branches[1]._replace(identity="")
    world.disk.outcomes[world.gtrid] = replace(decided, branches=(decided.branches[0], unknown))
    assert [(h.datasource, h.ended) for h in world.scan().heuristics] == [("b", "lost")]


def test_34_absent_where_the_server_does_not_tell_who_it_is_now_is_left_alone() -> None:
    world = world_after(logged, "b ended")
    world.b.tells, known, world.b.server = False, world.b.server, ""
    report = world.scan()
    assert [left.datasource for left in report.pending] == ["b"]
    assert world.gtrid in world.disk.outcomes
    world.b.server = known
    assert not world.scan().heuristics
    assert world.is_clean()


def test_34_nobody_tells_of_a_branch_that_a_person_has_rolled_back_where_the_database_does_not() -> None:
    """As the documents say: it shows only by evidence."""
    world = world_after(logged, "decided")
    world.b.tells = False
    world.b.end(world.xid(world.b, 1), BranchOutcome.ROLLED_BACK)
    assert not world.scan().heuristics
    assert world.outcomes() == {"committed", "rolled back"}


@pytest.mark.parametrize(("steps", "last"), [(logged, "decided"), (unaccounted, "finished")])
def test_24_a_branch_that_somebody_rolled_back_is_a_heuristic_outcome_once(
    steps: object, last: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_after(steps, last)
    world.b.end(world.xid(world.b, 1), BranchOutcome.ROLLED_BACK)
    report = world.scan()
    assert [(h.decided, h.ended) for h in report.heuristics] == [("commit", "rolled back")]
    assert "heuristic" in caplog.text
    caplog.clear()
    assert not world.scan().heuristics
    assert not caplog.records
    assert world.recovery.in_doubt()[0].heuristics
    assert world.recovery.forget(world.gtrid) == 1
    assert not world.recovery.in_doubt()


class TellingOnce(ModelDatabase):
    """It rolls back what it was to commit, and says so once: XA_RB* in reply to xa_commit."""

    def commit(self, record: BranchRecord) -> BranchOutcome:
        if record.xid in self.prepared:
            self.end(record.xid, BranchOutcome.ROLLED_BACK)
            return BranchOutcome.ROLLED_BACK
        return super().commit(record)


def test_24_what_a_database_tells_once_is_written_before_another_is_asked() -> None:
    world = world_after(logged, "decided")
    a = TellingOnce("a", world.calls)
    a.prepared, a.tells = world.a.prepared, False
    world.a = a
    world.recovery = world.recoverer()
    written: list[str] = []

    def look(number: int) -> None:
        if world.calls.names[number] == "b.committed":
            written.extend(each.ended for each in world.log.heuristics())

    world.calls.before = look
    assert [each.datasource for each in world.scan().heuristics] == ["a"]
    assert written == ["rolled back"]
    assert not world.scan().heuristics
