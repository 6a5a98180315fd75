"""What an operator may do by hand, and what the listing tells him."""

from __future__ import annotations

import pytest

from tests.unit.recovery_model import NODE, World, logged, marked, pointed, world_after
from txpool.errors import ProgrammingError
from txpool.log.base import Life
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
