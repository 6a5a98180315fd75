"""What recovery does with a transaction as it stands: each rule, with the model databases asked afterwards."""

from __future__ import annotations

import logging
import threading

import pytest

from recovery import RecoveryManager
from recovery.evidence import Evidence, Standing
from recovery.orphans import Ballot, IncarnationFilter, NodeFilter, TransactionLogFilter, Vote, poll
from recovery.sites import Listing, Seen
from tests.unit.recovery_model import NODE, World, logged, marked, pointed, unaccounted
from txpool.errors import ConfigurationError, ProgrammingError
from txpool.log.base import Decision, Heuristic, Life
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import Answer, BranchRecord, MarkedRow
from txpool.xid import TaskName, Xid, make_gtrid, make_xid

COMMITTED, ROLLED_BACK = Answer.COMMITTED, Answer.ROLLED_BACK


def world_after(steps: object, last: str, *, dead: bool = True) -> World:
    """A world in which a coordinator has come as far as the step called `last`."""
    world = World()
    for step in steps(world):  # type: ignore[operator]
        if step == last:
            break
    else:
        raise AssertionError(last)
    if dead:
        world.die()
    return world


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
    world = World()
    world.die()
    world.scan()
    world.a.prepare(world.xid(world.a))
    world.scan()
    assert world.a.ended == {world.xid(world.a): ROLLED_BACK}


@pytest.mark.parametrize("node", [NODE, "other"])
def test_what_is_unknown_to_the_log_or_another_nodes_is_left_alone(node: str) -> None:
    world = World()
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


def test_34_a_decision_is_kept_while_a_datasource_is_not_configured() -> None:
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


def test_6_absent_without_evidence_is_enough_after_a_decision() -> None:
    world = World()
    world.log.record(world.gtrid, [BranchRecord(world.xid(world.a), "a", world.a.server)])
    world.die()
    report = world.scan()
    assert not report.heuristics
    assert world.is_clean()


def test_23_a_branch_that_the_database_has_lost_is_a_hazard_once() -> None:
    world = world_after(logged, "decided")
    world.b.prepared.clear()
    report = world.scan()
    assert [(h.decided, h.ended, h.datasource) for h in report.heuristics] == [("commit", "lost", "b")]
    assert not world.scan().heuristics
    assert len(world.log.heuristics()) == 1
    assert world.is_clean()


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
    world = World()
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
    world = World()
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
    world.disk.lives[world.incarnation] = Life.FENCED
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


# -- by hand ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [logged, marked])
def test_a_rollback_by_hand_is_refused_where_it_is_decided(steps: object) -> None:
    world = world_after(steps, "decided")
    with pytest.raises(ProgrammingError, match="decided to commit"):
        world.recovery.rollback(world.gtrid)
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    world.scan()
    assert world.outcomes() == {"committed"}


@pytest.mark.parametrize(("steps", "last"), [(logged, "b prepared"), (marked, "b prepared"), (pointed, "pointed")])
def test_a_rollback_by_hand_takes_the_key_from_a_living_process(steps: object, last: str) -> None:
    world = World()
    running = steps(world)  # type: ignore[operator]
    while next(running) != last:
        pass
    if world.ledger.open is not None:
        world.ledger.open = None  # the operator waits for its lock, and it times out: its session is ended
    world.recovery.rollback(world.gtrid)
    for _ in running:
        pass
    assert world.outcomes() == {"rolled back"}


def test_a_rollback_by_hand_ends_what_is_unknown_to_the_log() -> None:
    world = World()
    xid = make_xid(make_gtrid(NODE, "strange00000", 1), 0, "a")
    world.a.prepare(xid)
    assert [each.gid for each in world.recovery.rollback(xid.gtrid).rolled_back] == [xid.joined]


@pytest.mark.parametrize("steps", [logged, marked])
def test_a_commit_by_hand_is_refused_unless_it_is_decided(steps: object) -> None:
    world = world_after(steps, "b prepared")
    with pytest.raises(ProgrammingError, match="not decided"):
        world.recovery.commit(world.gtrid)
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    assert not world.ledger.rows


@pytest.mark.parametrize("steps", [logged, marked])
def test_a_commit_by_hand_finishes_what_is_decided(steps: object) -> None:
    world = world_after(steps, "decided", dead=False)
    with pytest.raises(ProgrammingError, match="living"):
        world.recovery.commit(world.gtrid)
    world.die()
    world.recovery.commit(world.gtrid)
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


@pytest.mark.parametrize("act", ["commit", "rollback", "show"])
def test_a_text_that_is_no_gtrid_is_refused(act: str) -> None:
    with pytest.raises(ProgrammingError, match="not a gtrid"):
        getattr(World().recovery, act)("txp1:nobody")


@pytest.mark.parametrize("act", ["commit", "rollback"])
@pytest.mark.parametrize("node", [NODE, "other"])
def test_what_is_not_known_or_not_ours_is_refused_by_hand(act: str, node: str) -> None:
    with pytest.raises(ProgrammingError, match="nothing was done"):
        getattr(World().recovery, act)(make_gtrid(node, "strange00000", 1))


# -- the listing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "last", "decision", "words"),
    [
        (logged, "b prepared", "undecided", "fence its dead process, then roll back"),
        (logged, "decided", "commit", "commit: it is decided in the log"),
        (marked, "b prepared", "undecided", "put a tombstone into ledger"),
        (marked, "decided", "commit", "commit: it is committed in ledger"),
    ],
)
def test_the_listing_says_what_will_be_done_and_writes_nothing(
    steps: object, last: str, decision: str, words: str
) -> None:
    world = world_after(steps, last)
    (found,) = world.recovery.in_doubt()
    assert (found.gtrid, found.decision, found.attention) == (world.gtrid, decision, True)
    assert words in found.next
    assert {branch.state for branch in found.branches} == {"prepared"}
    assert world.disk.lives[world.incarnation] is Life.DEAD
    assert not {"fence", "ledger.tombstone", "purge"} & set(world.calls.names)
    assert world.recovery.show(world.gtrid) == found


def test_the_listing_leaves_a_living_process_to_itself() -> None:
    world = world_after(logged, "decided", dead=False)
    (found,) = world.recovery.in_doubt()
    assert not found.attention
    assert "lives" in found.next


# -- the vote -----------------------------------------------------------------------------------------------------


def evidence_of(xid: Xid, life: Life | None, **known: object) -> Evidence:
    seen = Seen(xid, "a", "")
    empty: dict[str, object] = {
        "node": NODE,
        "listings": {"a": Listing("", (seen,))},
        "silent": {},
        "lives": {xid.incarnation: life} if life else {},
        "fenced": frozenset({xid.incarnation} if life is Life.FENCED else ()),
        "finished": frozenset(),
        "pointers": {},
        "decisions": {},
        "aborted": frozenset(),
        "rows": {},
        "tags": {},
    }
    return Evidence(**(empty | known))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("life", "known", "outcome"),
    [
        (Life.FENCED, {}, Vote.ROLLBACK),
        (Life.ALIVE, {}, Vote.LEAVE_ALONE),
        (Life.DEAD, {}, Vote.LEAVE_ALONE),
        (None, {}, Vote.LEAVE_ALONE),
        (Life.ALIVE, {"finished": "gtrid"}, Vote.ROLLBACK),
        (Life.FENCED, {"decisions": "gtrid"}, Vote.LEAVE_ALONE),
        (Life.FENCED, {"pointers": "gtrid"}, Vote.LEAVE_ALONE),
    ],
)
def test_one_leave_alone_wins(life: Life | None, known: dict[str, str], outcome: Vote) -> None:
    xid = make_xid(make_gtrid(NODE, "incarnation0", 1), 0, "a")
    values: dict[str, object] = {
        "finished": frozenset([xid.gtrid]),
        "decisions": {xid.gtrid: Decision(xid.gtrid, ())},
        "pointers": {xid.gtrid: "ledger"},
    }
    evidence = evidence_of(xid, life, **{name: values[name] for name in known})
    ballot = poll((TransactionLogFilter(), NodeFilter([NODE]), IncarnationFilter()), evidence, xid)
    assert ballot.vote is outcome


def test_no_vote_leaves_and_a_filter_of_ones_own_has_a_say() -> None:
    xid = make_xid(make_gtrid(NODE, "incarnation0", 1), 0, "a")
    evidence = evidence_of(xid, Life.FENCED)

    class Hold:
        def vote(self, evidence: Evidence, xid: Xid) -> Ballot | None:
            return Ballot(Vote.LEAVE_ALONE, "not on a Friday")

    assert poll((), evidence, xid).vote is Vote.LEAVE_ALONE
    assert poll((NodeFilter(["other"]),), evidence, xid).vote is Vote.LEAVE_ALONE
    assert poll((NodeFilter([NODE]), Hold()), evidence, xid).reason == "not on a Friday"


def test_another_nodes_standing_is_foreign_even_where_the_incarnation_is_known() -> None:
    xid = make_xid(make_gtrid("other", "incarnation0", 1), 0, "a")
    assert evidence_of(xid, Life.FENCED).standing(xid.gtrid) is Standing.FOREIGN


# -- the thread ---------------------------------------------------------------------------------------------------


def test_the_thread_scans_at_once_and_stop_waits_for_the_pass() -> None:
    world = world_after(logged, "decided")
    reached, go = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if world.calls.names[number] == "purge":
            reached.set()
            go.wait()

    world.calls.before = hold
    world.recovery.start()
    world.recovery.start()
    assert reached.wait(30)
    stopper = threading.Thread(target=world.recovery.stop)
    stopper.start()
    assert world.disk.outcomes
    go.set()
    stopper.join()
    assert world.is_clean()
    assert world.recovery.last_report is not None
    world.recovery.stop()


def test_the_thread_outlives_a_scan_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(logged, "decided")
    manager = RecoveryManager(log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0, period=0.001)
    done = threading.Event()

    def fail_once(number: int) -> None:
        if number < 6 and world.calls.names[number] == "incarnations":
            raise OSError("the log is on a bad disk")
        if world.calls.names[number] == "purge":
            done.set()

    world.calls.before = fail_once
    manager.start()
    assert done.wait(30)
    manager.stop()
    assert world.is_clean()
    assert "bad disk" in caplog.text


def test_stop_ends_a_backoff_and_the_orphan_waits_for_the_next_scan() -> None:
    world = world_after(logged, "b prepared")
    manager = RecoveryManager(log=world.log, datasources=[world.a, world.b], backoff=3600, period=3600)
    listed = threading.Event()

    def watch(number: int) -> None:
        if world.calls.names[number] == "decisions":
            listed.set()

    world.calls.before = watch
    manager.start()
    assert listed.wait(30)
    manager.stop()
    assert len(world.a.prepared) == 1
    assert manager.last_report is not None
    world.scan()
    assert world.outcomes() == {"rolled back"}


# -- the configuration --------------------------------------------------------------------------------------------


def test_recovery_needs_a_node_a_log_and_datasources() -> None:
    with pytest.raises(ConfigurationError, match="node.name"):
        RecoveryManager(datasources=[])
    with pytest.raises(ConfigurationError, match="no datasource"):
        RecoveryManager(log=MemoryLog(MemoryDisk(NODE), node=NODE), datasources=[])


def test_a_heuristic_outcome_is_not_noted_twice() -> None:
    world = world_after(logged, "decided")
    world.b.end(world.xid(world.b, 1), ROLLED_BACK)
    world.a.silent = True
    for _ in range(3):
        world.scan()
    assert world.log.heuristics() == [
        Heuristic(world.gtrid, "1:b:L", "b", "commit", "rolled back", pytest.approx(0, abs=1e12))
    ]
