"""What recovery does with a transaction as it stands, with the model databases asked afterwards."""

from __future__ import annotations

import logging

import pytest

from recovery import RecoveryManager
from tests.models.recovery import RecoveryWorld, logged, marked, unaccounted, world_after
from tests.models.recovery_databases import NODE
from txpool.log.base import IncarnationState
from txpool.resources.base import BranchOutcome
from txpool.resources.recovery_access import MarkedRow
from txpool.xid import TaskName, make_gtrid, make_xid

COMMITTED, ROLLED_BACK = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK


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
