"""Rules 31 and 33: a branch counts by its owner, whatever its name says; recovery finds what only a note tells of."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from recovery import RecoveryManager
from recovery.scan.datasources.datasources import ListedBranch
from recovery.scan.owners import BranchOwners
from tests.models.recovery import RecoveryWorld, logged, marked, pointed, unaccounted, world_after
from tests.models.recovery_databases import NODE, ModelDatabase
from txpool.errors import OperationalError
from txpool.log.base import IncarnationState, SideRecord
from txpool.log.formats import FORMAT
from txpool.log.locations import INCARNATION, LocationNote
from txpool.resources.base import BranchOutcome, PrepareLocation
from txpool.xid import Xid, make_gtrid, make_xid

Steps = Callable[[RecoveryWorld], Iterator[str]]

COMMITTED, ROLLED_BACK = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK
MALLORY = frozenset({"mallory"})

#: How a transaction stands, and how it ends.
STANDS = [
    (logged, "b prepared", "rolled back"),
    (logged, "decided", "committed"),
    (logged, "a ended", "committed"),
    (unaccounted, "finished", "committed"),
    (marked, "b prepared", "rolled back"),
    (marked, "decided", "committed"),
    (marked, "a ended", "committed"),
    (pointed, "prepared", "rolled back"),
    (pointed, "row inserted", "rolled back"),
    (pointed, "decided", "committed"),
    (pointed, "a ended", "committed"),
]
SAYS = ["L", "L:0.0.7.1", "M.ledger", "M.ledger:abcdefghijkl", "M.nosuch"]


def forge(world: RecoveryWorld, database: ModelDatabase, bqual: str, roles: frozenset[str] = MALLORY) -> Xid:
    """Somebody who owns nothing prepares there."""
    xid = Xid(world.gtrid, bqual)
    database.forged[xid] = roles
    return xid


@pytest.mark.parametrize("roles", [MALLORY, frozenset[str]()], ids=["mallory", "dropped"])
@pytest.mark.parametrize("said", SAYS)
@pytest.mark.parametrize(("steps", "last", "end"), STANDS)
def test_31_what_somebody_else_has_prepared_decides_nothing_and_holds_nothing_up(
    steps: Steps, last: str, end: str, said: str, roles: frozenset[str]
) -> None:
    world = world_after(steps, last)
    forged = [(world.a, forge(world, world.a, f"9:a:{said}", roles)), (world.b, forge(world, world.b, "8:b:L", roles))]
    report = world.scan()
    assert world.outcomes() == {end}
    assert world.is_clean()
    assert "ledger.tombstone" not in world.calls.names or steps is not logged
    assert all(database.forged == {xid: roles} for database, xid in forged)
    assert not report.pending
    assert not report.errors


@pytest.mark.parametrize("said", SAYS)
def test_31_alone_it_is_no_transaction_of_ours(said: str) -> None:
    world = RecoveryWorld()
    xid = forge(world, world.a, f"0:a:{said}")
    world.die()
    report = world.scan()
    assert not report.pending
    assert world.a.forged == {xid: MALLORY}
    assert not {"ledger.tombstone", "a.rolled back", "a.committed"} & set(world.calls.names)
    assert world.is_clean()


@pytest.mark.parametrize("steps", [logged, marked])
def test_31_under_the_name_of_a_branch_that_has_ended_the_decision_is_kept_and_nothing_else_waits(steps: Steps) -> None:
    world = world_after(steps, "a ended")
    taken = forge(world, world.a, next(iter(world.a.ended)).bqual)
    other = make_xid(make_gtrid(NODE, world.incarnation, 2), 0, "a")
    world.a.prepare(other)
    report = world.scan()
    assert list(world.b.ended.values()) == [COMMITTED]
    assert world.a.ended[other] is ROLLED_BACK
    assert world.disk.outcomes or world.ledger.rows
    assert [left.gid for left in report.pending] == [taken.joined]
    assert not world.a.prepared
    assert not world.b.prepared
    del world.a.forged[taken]
    world.scan()
    assert world.is_clean()
    assert not world.log.heuristics()


@pytest.mark.parametrize("steps", [logged, marked])
def test_31_under_the_name_of_a_branch_of_another_database_it_is_none_of_the_decisions(steps: Steps) -> None:
    """This failed: it kept the row for as long as somebody liked."""
    world = world_after(steps, "decided")
    forge(world, world.b, next(iter(world.a.prepared)).bqual)
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()
    assert world.b.forged


def test_31_before_ours_it_makes_ours_vote_no_and_is_left() -> None:
    world = world_after(logged, "a prepared")
    taken = forge(world, world.b, world.xid(world.b, 1).bqual)
    world.log.finish(world.gtrid)  # the coordinator has heard 42710, and cannot roll back what is not its own
    world.scan()
    assert world.outcomes() == {"rolled back"}
    world.scan()
    assert world.b.forged == {taken: MALLORY}
    assert world.is_clean()


def test_31_where_ours_differ_in_their_decider_nothing_of_it_is_ended() -> None:
    world = world_after(logged, "b prepared")
    odd = Xid(world.gtrid, "9:a:M.ledger")
    world.a.prepare(odd)
    report = world.scan()
    assert (len(world.a.prepared), len(world.b.prepared)) == (2, 1)
    assert "ledger.tombstone" not in world.calls.names
    assert {left.gid for left in report.pending} == {xid.joined for xid in (*world.a.prepared, *world.b.prepared)}
    world.a.end(odd, ROLLED_BACK)
    world.scan()
    assert world.outcomes() == {"rolled back"}
    assert world.is_clean()


@pytest.mark.parametrize(("steps", "last", "end"), [s for s in STANDS if s[1] == "decided"])
def test_31_where_ours_differ_a_decision_and_a_pointer_outrank_their_names(steps: Steps, last: str, end: str) -> None:
    world = world_after(steps, last)
    odd = Xid(world.gtrid, "9:a:M.ledger" if steps is logged else "9:a:L")
    world.a.prepared = {odd: 2.0, **world.a.prepared}
    world.scan()
    assert world.a.ended.pop(odd) is ROLLED_BACK, "the decision does not name it"
    assert world.outcomes() == {end}
    assert world.is_clean()


# -- whose it is --------------------------------------------------------------------------------------------------


def seen(incarnation: str, *roles: str, identity: str = "server-of-a") -> ListedBranch:
    return ListedBranch(make_xid(make_gtrid(NODE, incarnation, 1), 0, "a"), "a", identity, roles=frozenset(roles))


@pytest.mark.parametrize(
    ("branch", "counts"),
    [
        (seen("n" * 12, "app"), True),
        (seen("n" * 12, "owner", "app"), True),  # which app is a member of
        (seen("n" * 12, "mallory"), False),
        (seen("n" * 12), False),
        (seen("n" * 12, "app", identity="another"), False),  # where app may be somebody else
        (seen("n" * 12, "configured"), False),
        (seen("o" * 12, "configured"), True),  # of before there were notes
        (seen("o" * 12, "mallory"), False),
    ],
)
def test_31_it_counts_by_the_noted_role_and_by_the_configured_one_where_there_were_no_notes(
    branch: ListedBranch, counts: bool
) -> None:
    notes = [
        LocationNote(NODE, PrepareLocation("a", "server-of-a", "app")),
        LocationNote("other", PrepareLocation("a", "server-of-a", "mallory")),
    ]
    assert BranchOwners(notes, {"n" * 12}, lambda _: {"configured"}).is_ours(branch) is counts


def test_31_a_database_that_cannot_tell_our_role_has_not_answered() -> None:
    world = world_after(logged, "decided")

    def fail(number: int) -> None:
        if world.calls.names[number] == "a.logins":
            raise OperationalError("no such role")

    world.calls.before = fail
    forge(world, world.a, "9:a:L")
    report = world.scan()
    assert report.unreachable == {"a": "OperationalError: no such role"}
    assert world.disk.outcomes
    assert world.a.prepared
    world.calls.before = lambda number: None
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


# -- rule 33 ------------------------------------------------------------------------------------------------------


class ByItsNote:
    """What leads to a database that recovery was not configured with."""

    def __init__(self, world: RecoveryWorld) -> None:
        self.world = world
        self.fails = False

    def find(self, note: LocationNote) -> tuple[ModelDatabase, str]:
        if self.fails:
            raise OperationalError("its file is gone")
        assert note.location.identity == self.world.b.server
        return self.world.b, "b.properties"

    def marked(self, name: str, notes: object) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""


def knows_a_only(world: RecoveryWorld, *, noted: bool = True) -> ByItsNote:
    """Its node has noted b, where it has, and recovery's file does not name that."""
    found = ByItsNote(world)
    world.disk.side_records[INCARNATION, world.incarnation] = SideRecord(INCARNATION, world.incarnation, FORMAT)
    world.log.note_location(PrepareLocation("a", world.a.server, "app"))
    if noted:
        world.log.note_location(PrepareLocation("b", world.b.server, "app", "b.properties"))
    world.recovery = RecoveryManager(log=world.log, datasources=[world.a, world.ledger], backoff=0)
    world.recovery._discovered = found  # type: ignore[assignment]
    return found


@pytest.mark.parametrize(("steps", "last", "end"), STANDS)
def test_33_a_branch_where_only_the_note_leads_ends_and_is_told(steps: Steps, last: str, end: str) -> None:
    """This failed: every scan that had reached a noted database ended in a KeyError."""
    world = world_after(steps, last)
    knows_a_only(world)
    forge(world, world.b, "9:b:M.nosuch")
    report = world.scan()
    assert world.outcomes() == {end}
    assert world.is_clean()
    assert ("unconfigured", "b") in [(alarm.kind, alarm.subject) for alarm in report.alarms]


@pytest.mark.parametrize("steps", [logged, marked])
def test_33_while_the_note_leads_nowhere_what_is_decided_is_kept(steps: Steps) -> None:
    world = world_after(steps, "decided")
    further = knows_a_only(world)
    further.fails = True
    report = world.scan()
    assert world.disk.outcomes or world.ledger.rows
    assert any("its file is gone" in alarm.text for alarm in report.alarms)
    further.fails = False
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


def test_33_without_the_note_nobody_hears_of_it() -> None:
    """What the note is there for."""
    world = world_after(logged, "b prepared")
    knows_a_only(world, noted=False)
    report = world.scan()
    assert world.b.prepared
    assert not report.pending
    assert not report.alarms


def test_33_a_branch_appears_there_long_after_its_incarnation_has_expired() -> None:
    world = RecoveryWorld()
    knows_a_only(world)
    world.die()
    world.scan()
    world.log.expire([world.incarnation])
    assert world.incarnation not in world.log.incarnations_noting()
    xid = world.xid(world.b, 1)
    world.b.prepare(xid)
    world.scan()
    assert world.b.ended == {xid: ROLLED_BACK}
    assert world.disk.states == {world.incarnation: IncarnationState.FENCED}
