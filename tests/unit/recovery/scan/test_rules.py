"""What recovery does with a transaction as it stands: each rule, with the model databases asked afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from recovery import RecoveryManager
from tests.models.recovery import RecoveryWorld, logged, marked, pointed, unaccounted, world_after
from tests.models.recovery_databases import NODE, ModelDatabase
from txpool import DataSource
from txpool.log.base import IncarnationState
from txpool.resources.base import BranchOutcome, BranchRecord, MarkedRow
from txpool.resources.xids import Xids
from txpool.xid import TaskName, make_gtrid, make_xid

COMMITTED, ROLLED_BACK = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK
Steps = Callable[[RecoveryWorld], Iterator[str]]


def test_what_a_dead_process_had_decided_commits_and_is_forgotten() -> None:
    world = world_after(logged, "decided")
    report = world.scan()
    assert [*world.a.ended.values(), *world.b.ended.values()] == [COMMITTED, COMMITTED]
    assert report.forgotten == (world.gtrid,)
    assert world.is_clean()


def test_what_a_dead_process_had_not_decided_rolls_back_in_the_second_pass() -> None:
    world = world_after(logged, "b prepared")
    seen: list[bool] = []

    def watch(number: int) -> None:
        if world.calls.names[number] == "incarnations":
            seen.append(bool(world.a.prepared and world.b.prepared))

    world.calls.before = watch
    world.scan()
    assert seen == [True, True]
    assert [*world.a.ended.values(), *world.b.ended.values()] == [ROLLED_BACK, ROLLED_BACK]


@pytest.mark.parametrize("last", ["b prepared", "decided", "a ended"])
def test_a_living_process_is_left_alone(last: str) -> None:
    world = world_after(logged, last, dead=False)
    before = dict(world.a.prepared), dict(world.b.prepared), dict(world.disk.outcomes)
    report = world.scan()
    assert (world.a.prepared, world.b.prepared, world.disk.outcomes) == before
    assert report.left_alone
    assert not report.pending


@pytest.mark.parametrize("last", ["row inserted", "b prepared", "decided", "a ended", "b ended"])
def test_a_living_process_row_is_left_alone(last: str) -> None:
    world = world_after(marked, last, dead=False)
    world.scan()
    world.scan()
    assert not any(row for row in world.ledger.rows.values() if not row.committed)
    assert len(world.ledger.rows) == (last in ("decided", "a ended", "b ended"))
    assert "ledger.tombstone" not in world.calls.names


def test_5_13_what_a_living_process_has_finished_ends_and_keeps_its_mark() -> None:
    world = world_after(unaccounted, "finished", dead=False)
    world.scan()
    assert world.b.ended[world.xid(world.b, 1)] is COMMITTED
    assert not world.disk.outcomes
    assert world.disk.finished == {world.gtrid}


def test_28_a_loser_that_appears_after_the_decision_is_forgotten_rolls_back_while_its_process_lives() -> None:
    world = world_after(unaccounted, "finished", dead=False)
    world.scan()
    late = make_xid(world.gtrid, 0, "a", task=TaskName(1, 2, 9, 1))
    world.a.prepare(late)
    world.scan()
    assert world.a.ended[late] is ROLLED_BACK


def test_28_a_branch_that_the_decision_does_not_name_rolls_back_beside_it() -> None:
    world = world_after(logged, "decided")
    loser = make_xid(world.gtrid, 7, "b", task=TaskName(1, 2, 9, 1))
    world.b.prepare(loser)
    report = world.scan()
    assert world.b.ended[loser] is ROLLED_BACK
    assert world.b.ended[world.xid(world.b, 1)] is COMMITTED
    assert [each.gid for each in report.rolled_back] == [loser.joined]


def test_27_a_branch_that_appears_long_after_the_fence_rolls_back() -> None:
    world = RecoveryWorld()
    world.die()
    world.scan()
    world.a.prepare(world.xid(world.a))
    world.scan()
    assert world.a.ended == {world.xid(world.a): ROLLED_BACK}


@pytest.mark.parametrize("node", [NODE, "other"])
def test_what_is_unknown_to_the_log_or_another_nodes_is_left_alone(node: str) -> None:
    world = RecoveryWorld()
    xid = make_xid(make_gtrid(node, "strange00000", 1), 0, "a")
    world.a.prepare(xid)
    report = world.scan()
    world.scan()
    assert xid in world.a.prepared
    assert bool(report.pending) is (node == NODE)


def test_7_a_decision_is_kept_while_a_datasource_has_not_answered() -> None:
    world = world_after(logged, "decided")
    world.b.reachable = False
    report = world.scan()
    assert world.disk.outcomes
    assert "b" in report.unreachable
    world.b.reachable, world.b.silent = True, True
    world.scan()
    assert world.disk.outcomes
    world.b.silent = False
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


def test_a_decision_is_kept_while_a_datasource_is_not_configured() -> None:
    world = world_after(logged, "decided")
    manager = RecoveryManager(log=world.log, datasources=[world.a], backoff=0)
    report = manager.scan()
    assert world.disk.outcomes
    assert [left.datasource for left in report.pending] == ["b"]


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
    world.b.end(world.xid(world.b, 1), ROLLED_BACK)
    assert not world.scan().heuristics
    assert world.outcomes() == {"committed", "rolled back"}


@pytest.mark.parametrize(("steps", "last"), [(logged, "decided"), (unaccounted, "finished")])
def test_24_a_branch_that_somebody_rolled_back_is_a_heuristic_outcome_once(
    steps: object, last: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_after(steps, last)
    world.b.end(world.xid(world.b, 1), ROLLED_BACK)
    report = world.scan()
    assert [(h.decided, h.ended) for h in report.heuristics] == [("commit", "rolled back")]
    assert "heuristic" in caplog.text
    caplog.clear()
    assert not world.scan().heuristics
    assert not caplog.records
    assert world.recovery.in_doubt()[0].heuristics
    assert world.recovery.forget(world.gtrid) == 1
    assert not world.recovery.in_doubt()


# -- what a marked datasource decides ---------------------------------------------------------------------------


def test_16_a_marked_transaction_without_a_row_meets_a_tombstone() -> None:
    world = world_after(marked, "b prepared")
    world.scan()
    assert world.outcomes() == {"rolled back"}
    assert world.is_clean()
    assert "ledger.tombstone" in world.calls.names


def test_16_a_row_whose_transaction_is_open_leaves_everything_undecided(caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(marked, "b prepared", dead=False)
    world.lose()
    report = world.scan()
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    assert {left.datasource for left in report.pending} == {"a", "b"}
    assert "lock timeout" in caplog.text
    world.ledger.commit()
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


def test_14_a_marked_datasource_that_does_not_answer_decides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(marked, "decided")
    world.ledger.reachable = False
    report = world.scan()
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    assert "ledger" in report.unreachable
    assert "ledger" in caplog.text
    caplog.clear()
    world.scan()
    assert not caplog.records, "said before"
    world.ledger.reachable = True
    world.scan()
    assert world.outcomes() == {"committed"}
    world.ledger.reachable = False
    world.scan()
    assert "ledger" in caplog.text, "news again"


def test_a_marked_datasource_that_is_not_configured_decides_nothing() -> None:
    world = world_after(marked, "decided")
    manager = RecoveryManager(log=world.log, datasources=[world.a, world.b], backoff=0)
    report = manager.scan()
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    assert "ledger" in report.pending[0].reason
    assert "not configured" not in {branch.state for each in manager.in_doubt() for branch in each.branches}
    assert all("ledger" in each.next for each in manager.in_doubt())


def test_a_datasource_that_is_open_and_has_the_same_name_decides_nothing(tmp_path: Path) -> None:
    world = world_after(marked, "decided")
    with DataSource("ledger", driver="sqlite3", url=f"sqlite:///{tmp_path}/other.db", mode="cmr") as other:
        Xids("ledger", other.driver_adapter, other.settings.cmr_table).create()
        RecoveryManager(log=world.log, datasources=[world.a, world.b], backoff=0).scan()
        assert len(world.a.prepared) == len(world.b.prepared) == 1


def test_7_a_row_is_kept_while_a_branch_has_not_answered() -> None:
    world = world_after(marked, "decided")
    world.b.reachable = False
    world.scan()
    assert world.ledger.rows
    world.b.reachable, world.b.silent = True, True
    world.scan()
    assert world.ledger.rows
    world.b.silent = False
    world.scan()
    assert world.is_clean()
    assert world.outcomes() == {"committed"}


def test_13_a_tombstone_is_kept_while_any_datasource_has_not_answered() -> None:
    world = world_after(marked, "b prepared")
    world.b.reachable = False
    world.scan()
    assert [row.committed for row in world.ledger.rows.values()] == [False]
    world.b.reachable = True
    world.scan()
    assert world.is_clean()


def test_12_a_row_of_another_node_is_never_touched() -> None:
    world = RecoveryWorld()
    gtrid = make_gtrid("other", world.incarnation, 1)
    world.ledger.rows[gtrid] = MarkedRow(gtrid, "other", True)
    world.die()
    world.scan()
    assert gtrid in world.ledger.rows


def test_8_a_pointer_overrides_the_name_and_is_kept_while_its_row_may_still_commit() -> None:
    world = world_after(pointed, "row inserted", dead=False)
    world.lose()
    world.scan()
    assert world.disk.pointers
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    world.ledger.commit()
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


def test_8_a_pointer_without_branches_is_resolved_before_it_goes() -> None:
    world = world_after(pointed, "pointed", dead=False)
    world.a.prepared.clear()
    world.b.prepared.clear()
    world.lose()
    world.ledger.open = MarkedRow(world.gtrid, NODE, True)
    world.scan()
    assert world.disk.pointers, "the row's COMMIT may be on its way"
    world.ledger.open = None
    world.scan()
    assert world.is_clean()


# -- what is kept -------------------------------------------------------------------------------------------------


def test_marks_and_abort_records_go_with_the_fence() -> None:
    world = RecoveryWorld()
    other = make_gtrid(NODE, world.incarnation, 2)
    world.log.abort(world.gtrid)
    world.log.finish(other)
    world.scan()
    assert (set(world.disk.outcomes), world.disk.finished) == ({world.gtrid}, {other})
    world.die()
    world.scan()
    assert world.is_clean()


def test_24_a_fence_is_written_again_before_its_transactions_are_touched() -> None:
    world = world_after(logged, "decided")
    world.disk.states[world.incarnation] = IncarnationState.FENCED
    world.scan()
    names = world.calls.names
    assert names.index("fence") < names.index("decisions")
    assert world.outcomes() == {"committed"}


def test_what_cannot_be_fenced_is_left_alone() -> None:
    world = world_after(logged, "decided")

    def refuse(number: int) -> None:
        if world.calls.names[number] == "fence":
            raise OSError("disk full")

    world.calls.before = refuse
    report = world.scan()
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    assert report.errors


def test_a_module_that_fails_stops_neither_the_others_nor_the_thread() -> None:
    world = world_after(logged, "decided")
    world.ledger.rows[world.gtrid[:-1] + "z"] = MarkedRow(make_gtrid(NODE, world.incarnation, 35), NODE, True)

    def fail(number: int) -> None:
        if world.calls.names[number] == "ledger.delete":
            raise OSError("it broke")

    world.calls.before = fail
    report = world.scan()
    assert "it broke" in report.errors["module marked"]
    assert world.outcomes() == {"committed"}
    assert not world.disk.outcomes


def test_news_is_said_per_branch(caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(logged, "decided")
    caplog.set_level(logging.INFO, "txpool.recovery")
    world.scan()
    assert f"committed {world.xid(world.a).joined} in a (decided in the log)" in caplog.messages
    caplog.clear()
    world.scan()
    assert not caplog.messages


def test_1_2_3_a_pass_reads_in_the_only_safe_order_and_then_acts() -> None:
    world = world_after(marked, "b prepared")
    world.one_pass()
    names = world.calls.names
    first = {name: names.index(name) for name in names}
    order = [
        "a.recover",
        "b.recover",
        "incarnations",
        "fence",
        "finished",
        "pointers",
        "decisions",
        "ledger.read",
        "ledger.tombstone",
        "a.rolled back",
        "b.rolled back",
        "ledger.delete",
    ]
    assert sorted(order, key=first.__getitem__) == order
    assert names.count("a.recover") == 2, "once more after the answers, before the tombstone goes"


def test_a_decision_of_an_unknown_incarnation_is_kept_and_reported() -> None:
    world = world_after(logged, "decided")
    del world.disk.states[world.incarnation]
    world.a.prepared.clear()
    world.b.prepared.clear()
    report = world.scan()
    assert world.disk.outcomes
    assert "unknown" in report.pending[0].reason
