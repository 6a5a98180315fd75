"""What an operator may do by hand, and what the listing tells him."""

from __future__ import annotations

import pytest

from recovery import RecoveryManager
from tests.models.recovery import RecoveryWorld, logged, marked, pointed, world_after
from tests.models.recovery_databases import NODE, WatchedLog
from txpool.errors import OperationalError, ProgrammingError
from txpool.log.base import Heuristic, IncarnationState
from txpool.resources.base import BranchOutcome
from txpool.xid import make_gtrid, make_xid


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
    world = RecoveryWorld()
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
    world = RecoveryWorld()
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


def test_a_refused_commit_says_of_no_living_process_that_recovery_rolls_back() -> None:
    world = world_after(logged, "b prepared", dead=False)
    with pytest.raises(ProgrammingError, match="Its process is alive") as refused:
        world.recovery.commit(world.gtrid)
    assert "rolls it back" not in str(refused.value)


def test_a_decision_that_cannot_be_read_is_not_told_to_be_none() -> None:
    world = world_after(marked, "decided")
    world.ledger.reachable = False
    with pytest.raises(OperationalError, match=r"ledger, which decides .* nobody can tell"):
        world.recovery.commit(world.gtrid)
    world.ledger.reachable = True
    world.recovery.commit(world.gtrid)
    assert world.outcomes() == {"committed"}


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
        getattr(RecoveryWorld().recovery, act)("txp1:nobody")


class EndedMeanwhile(WatchedLog):
    """A log whose last reading is behind the evidence of a commit by hand: another recoverer goes first."""

    beside: RecoveryWorld | None = None

    def heuristics(self) -> list[Heuristic]:
        world, self.beside = self.beside, None
        if world is not None:
            world.scan()
        return super().heuristics()


@pytest.mark.parametrize(("steps", "where"), [(logged, "the log"), (marked, "ledger"), (pointed, "ledger")])
def test_a_commit_by_hand_that_finds_its_decision_gone_says_so(steps: object, where: str) -> None:
    world = world_after(steps, "decided")
    log = EndedMeanwhile(world.disk, world.calls)
    log.beside = world
    manager = RecoveryManager(log=log, datasources=[world.a, world.b, world.ledger], backoff=0)
    with pytest.raises(
        ProgrammingError, match=f"{where} had the decision of .*, and has it no more: .* nothing was done"
    ):
        manager.commit(world.gtrid)
    assert [*world.a.ended.values(), *world.b.ended.values()] == [BranchOutcome.COMMITTED, BranchOutcome.COMMITTED]
    world.scan()
    assert world.is_clean()


@pytest.mark.parametrize("act", ["commit", "rollback"])
@pytest.mark.parametrize("node", [NODE, "other"])
def test_what_is_not_known_or_not_ours_is_refused_by_hand(act: str, node: str) -> None:
    with pytest.raises(ProgrammingError, match="nothing was done"):
        getattr(RecoveryWorld().recovery, act)(make_gtrid(node, "strange00000", 1))


# -- forget -------------------------------------------------------------------------------------------------------


def noted(world: RecoveryWorld, node: str) -> str:
    """The gtrid of an outcome that people are to look at, of a transaction that is over."""
    gtrid = make_gtrid(node, world.incarnation, 2)
    world.log.record_heuristic(Heuristic(gtrid, "0:a:L", "a", "commit", "rolled back"))
    return gtrid


def test_another_nodes_outcome_is_not_forgotten() -> None:
    world = RecoveryWorld()
    gtrid = noted(world, "other")
    with pytest.raises(ProgrammingError, match="belongs to node other"):
        world.recovery.forget(gtrid)
    assert [each.gtrid for each in world.log.heuristics()] == [gtrid]


@pytest.mark.parametrize("name", ["a", "b", "ledger"])
def test_nothing_is_forgotten_while_a_datasource_does_not_answer(name: str) -> None:
    world = RecoveryWorld()
    gtrid = noted(world, NODE)
    getattr(world, name).reachable = False
    with pytest.raises(OperationalError, match=f"{name} did not answer.*nothing was done"):
        world.recovery.forget(gtrid)
    assert len(world.log.heuristics()) == 1
    getattr(world, name).reachable = True
    assert world.recovery.forget(gtrid) == 1


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
    assert world.disk.states[world.incarnation] is IncarnationState.DEAD
    assert not {"fence", "ledger.tombstone", "purge"} & set(world.calls.names)
    assert world.recovery.show(world.gtrid) == found


def test_the_listing_leaves_a_living_process_to_itself() -> None:
    world = world_after(logged, "decided", dead=False)
    (found,) = world.recovery.in_doubt()
    assert not found.attention
    assert "is alive" in found.next
