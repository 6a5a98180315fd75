"""Expiry: what it moves, what it never moves, and that no outcome depends on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from recovery import RecoveryManager
from recovery.scan.modules.expiry import Entry, Expiry, Kind, KindScanner
from tests.models.recovery import RecoveryWorld, logged, marked, pointed, unaccounted, world_after
from tests.models.recovery_databases import NODE, WatchedLog
from txpool.config.settings import RecoverySettings
from txpool.errors import ProgrammingError
from txpool.log.base import Heuristic, IncarnationState
from txpool.resources.base import BranchOutcome
from txpool.xid import make_gtrid, make_xid

Steps = Callable[[RecoveryWorld], Iterator[str]]
SCENARIOS = [logged, unaccounted, marked, pointed]


class Greedy:
    """Takes everything at once."""

    def expires(self, entry: Entry, age: float, interval: float) -> bool:
        return True


class ForgetfulLog(WatchedLog):
    """One whose registry loses what expires."""

    def expire(self, incarnations: Iterable[str]) -> None:
        super().expire(incarnations)
        self._disk.expired.clear()


def greedy(world: RecoveryWorld) -> RecoveryManager:
    return RecoveryManager(log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0, scanners=[Greedy()])


def played(
    steps: Steps, lost_after: int, recovery: Callable[[RecoveryWorld], RecoveryManager], log: type = WatchedLog
) -> RecoveryWorld:
    """A process loses its lock after some steps and goes on; recovery scans twice before each of its next ones."""
    world = RecoveryWorld()
    world.log = log(world.disk, world.calls)
    manager = recovery(world)
    for number, _ in enumerate(steps(world)):
        if number == lost_after:
            world.lose()
        if number >= lost_after:
            manager.scan()
            manager.scan()
    world.die()
    manager.scan()
    manager.scan()
    return world


def lengths() -> list[tuple[Steps, int]]:
    return [(steps, number) for steps in SCENARIOS for number in range(len(list(steps(RecoveryWorld()))))]


@pytest.mark.parametrize(("steps", "lost_after"), lengths())
def test_no_outcome_depends_on_what_has_expired(steps: Steps, lost_after: int) -> None:
    world = played(steps, lost_after, greedy)
    assert len(world.outcomes()) == 1
    assert world.is_clean()
    assert world.outcomes() == played(steps, lost_after, RecoveryWorld.recoverer).outcomes()
    assert world.disk.expired == {world.incarnation}, "it is in the end of no use"


def test_a_registry_that_forgets_what_expires_would_mix_outcomes() -> None:
    outcomes = [played(steps, number, greedy, ForgetfulLog).outcomes() for steps, number in lengths()]
    assert {"committed", "rolled back"} in outcomes


@pytest.mark.parametrize("number", range(60))
def test_no_step_of_a_pass_is_harmed_by_what_expires_beside_it(number: int) -> None:
    world = world_after(pointed, "decided")
    beside = greedy(world)

    def interfere(call: int) -> None:
        if call == number:
            world.calls.before = lambda _: None
            beside.scan()
            beside.scan()

    world.calls.before = interfere
    world.scan()
    world.calls.before = lambda _: None
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


def test_a_branch_of_an_expired_incarnation_that_appears_late_is_swept() -> None:
    world = RecoveryWorld()
    world.die()
    manager = greedy(world)
    manager.scan()
    assert manager.scan().expired == (f"incarnation {world.incarnation}",)
    assert world.disk.states == {}
    assert world.log.is_fenced(world.incarnation)
    world.a.prepare(world.xid(world.a))
    (found,) = manager.in_doubt()
    assert "fenced" in found.standing
    assert world.disk.states == {}, "looking brings nothing back"
    assert [each.gid for each in manager.scan().rolled_back] == [world.xid(world.a).joined]
    assert world.disk.states == {world.incarnation: IncarnationState.FENCED}
    manager.scan()
    assert world.disk.states == {}


def test_a_record_of_an_expired_incarnation_that_appears_late_is_cleaned() -> None:
    world = RecoveryWorld()
    world.die()
    manager = greedy(world)
    manager.scan()
    manager.scan()
    world.log.abort(world.gtrid)
    world.log.finish(world.gtrid)
    manager.scan()
    assert world.is_clean()


@pytest.mark.parametrize("life", [IncarnationState.ALIVE, IncarnationState.DEAD])
def test_what_is_not_fenced_never_expires(life: IncarnationState) -> None:
    world = RecoveryWorld()
    world.disk.states[world.incarnation] = life
    world.log.expire([world.incarnation, "unknown00000"])
    assert world.disk.states == {world.incarnation: life}
    assert world.disk.expired == set()


@pytest.mark.parametrize(("steps", "last"), [(logged, "decided"), (marked, "decided"), (pointed, "pointed")])
def test_a_decision_never_expires_while_its_datasource_is_gone(steps: Steps, last: str) -> None:
    world = world_after(steps, last)
    manager = RecoveryManager(log=world.log, datasources=[world.b], backoff=0, scanners=[Greedy()])
    before = dict(world.disk.outcomes), dict(world.disk.pointers), dict(world.ledger.rows)
    for _ in range(4):
        assert manager.scan().expired == ()
    assert (dict(world.disk.outcomes), dict(world.disk.pointers), dict(world.ledger.rows)) == before
    assert world.incarnation in world.disk.states
    world.scan()
    world.scan()
    assert world.outcomes() == ({"rolled back"} if last == "pointed" else {"committed"})


def test_nothing_expires_while_a_datasource_does_not_answer() -> None:
    world = RecoveryWorld()
    world.die()
    world.b.reachable = False
    manager = greedy(world)
    for _ in range(3):
        assert manager.scan().expired == ()
    world.b.reachable = True
    assert manager.scan().expired


# -- heuristic outcomes -------------------------------------------------------------------------------------------


def heuristic_world() -> RecoveryWorld:
    """Decided to commit; somebody has rolled b back by hand, and a answers no more for now."""
    world = world_after(logged, "decided")
    world.b.end(world.xid(world.b, 1), BranchOutcome.ROLLED_BACK)
    world.a.silent = True
    return world


def test_a_heuristic_outcome_expires_once_its_transaction_is_over_and_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    world = heuristic_world()
    manager = greedy(world)
    for _ in range(3):
        manager.scan()
    (noted,) = world.log.heuristics()
    assert manager.expired() == [], "a branch of it has not answered"
    world.a.silent = False
    for _ in range(3):
        manager.scan()
    assert world.log.heuristics() == []
    (found, incarnation) = manager.expired()
    assert (found.kind, found.name, found.heuristics) == ("heuristic", world.gtrid, (noted,))
    assert (incarnation.kind, incarnation.name) == ("incarnation", world.incarnation)
    assert "not resolved in time" in caplog.text
    shown = manager.show(world.gtrid)
    assert shown is not None
    assert shown.heuristics == (noted,)
    assert manager.forget(world.gtrid) == 1
    assert [each.kind for each in manager.expired()] == ["incarnation"]
    with pytest.raises(ProgrammingError, match="no heuristic outcome"):
        manager.forget(world.gtrid)


@pytest.mark.parametrize("kept", ["finished", "aborted"])
def test_a_heuristic_outcome_expires_while_its_process_lives(kept: str) -> None:
    """A service may live for months, and its finished marks and abort records with it."""
    world = RecoveryWorld()
    if kept == "finished":
        for _ in unaccounted(world):
            pass
        world.b.end(world.xid(world.b, 1), BranchOutcome.ROLLED_BACK)
    else:
        world.log.record_heuristic(Heuristic(world.gtrid, "1:b:L", "b", "rollback", "committed"))
        world.log.abort(world.gtrid)
    manager = greedy(world)
    manager.scan()
    manager.scan()
    assert world.log.incarnations() == {world.incarnation: IncarnationState.ALIVE}
    assert world.log.heuristics() == []
    assert [(each.kind, each.name) for each in manager.expired()] == [("heuristic", world.gtrid)]
    assert (world.gtrid in world.log.finished(), world.gtrid in world.log.aborted()) == (
        kept == "finished",
        kept == "aborted",
    )


@pytest.mark.parametrize("last", ["prepared", "decided", "a ended"])
def test_a_heuristic_outcome_stays_while_its_living_process_has_not_ended_the_transaction(last: str) -> None:
    world = RecoveryWorld()
    running = unaccounted(world)
    while next(running) != last:
        pass
    world.log.record_heuristic(Heuristic(world.gtrid, "0:a:L", "a", "commit", "rolled back"))
    manager = greedy(world)
    manager.scan()
    manager.scan()
    assert len(world.log.heuristics()) == 1


def test_a_crash_between_keeping_and_dropping_loses_nothing() -> None:
    world = heuristic_world()
    world.a.silent = False
    manager = greedy(world)

    class CrashingLog(WatchedLog):
        def dismiss_heuristics(self, gtrid: str, bqual: str | None = None) -> None:
            raise OSError("killed")

    whole, world.log = world.log, CrashingLog(world.disk, world.calls)
    crashing = greedy(world)
    crashing.scan()
    assert "module expiry" in crashing.scan().errors
    assert len(whole.heuristics()) == 1
    assert len(crashing.expired()[0].heuristics) == 1
    manager.scan()
    assert whole.heuristics() == []
    assert len(manager.expired()[0].heuristics) == 1


# -- what an adopted log keeps ------------------------------------------------------------------------------------


def test_an_abort_record_of_an_unknown_incarnation_is_assumed_complete() -> None:
    world = RecoveryWorld()
    gtrid = make_gtrid(NODE, "strange00000", 1)
    world.log.abort(gtrid)
    manager = greedy(world)
    assert manager.scan().expired == (f"assumed-complete {gtrid}",)
    assert world.disk.outcomes == {}
    (found,) = manager.expired()
    assert (found.kind, found.name) == ("assumed-complete", gtrid)


def test_12_the_abort_record_of_a_process_that_began_during_the_pass_stays() -> None:
    world = RecoveryWorld()
    gtrid = make_gtrid(NODE, "newcomer0000", 1)

    def begin(number: int) -> None:
        """It registers behind the look at who lives, and aborts ahead of the look at abort records."""
        if world.calls.names[number] == "decisions":
            world.calls.before = lambda _: None
            world.disk.states["newcomer0000"] = IncarnationState.ALIVE
            world.log.abort(gtrid)

    world.calls.before = begin
    manager = greedy(world)
    for _ in range(3):
        assert manager.scan().expired == ()
    assert world.log.aborted() == {gtrid}


@pytest.mark.parametrize("kept", ["a branch", "a mark", "a pointer", "a living process"])
def test_an_abort_record_stays_while_anything_else_is_there(kept: str) -> None:
    world = RecoveryWorld()
    gtrid = make_gtrid(NODE, world.incarnation if kept == "a living process" else "strange00000", 1)
    world.log.abort(gtrid)
    if kept == "a branch":
        world.a.prepare(make_xid(gtrid, 0, "a"))
    elif kept == "a mark":
        world.disk.finished.add(gtrid)
    elif kept == "a pointer":
        world.disk.pointers[gtrid] = "elsewhere"
    manager = greedy(world)
    for _ in range(3):
        assert manager.scan().expired == ()


# -- when ---------------------------------------------------------------------------------------------------------


def manager_with(world: RecoveryWorld, **options: object) -> RecoveryManager:
    settings = RecoverySettings.load(None, **options)  # type: ignore[arg-type]
    return RecoveryManager(settings, log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0)


def test_an_entry_expires_after_the_interval_that_scans_have_seen_it_for_restarts_included() -> None:
    world = RecoveryWorld()
    world.die()
    for _ in range(3):
        assert manager_with(world, recovery_expiry_interval="1h").scan().expired == ()
    (record,) = world.log.side_records("expiry")
    long_ago = {f"incarnation {world.incarnation}": record.recorded_at - 3600}
    assert json.loads(record.text).keys() == {"format", *long_ago}
    world.log.put_record(replace(record, text=json.dumps(long_ago)))
    assert manager_with(world, recovery_expiry_interval="1h").scan().expired == (f"incarnation {world.incarnation}",)


@pytest.mark.parametrize("options", [{"recovery_expiry_interval": "none"}, {"recovery_expiry_interval": "0"}])
def test_it_can_be_never(options: dict[str, str]) -> None:
    world = RecoveryWorld()
    world.die()
    manager = manager_with(world, **options)
    for _ in range(3):
        assert manager.scan().expired == ()
    assert world.log.side_records("expiry") == []


def test_the_first_can_be_skipped() -> None:
    world = RecoveryWorld()
    world.die()
    manager = manager_with(world, recovery_expiry_interval="1h", recovery_expiry_skip_first=True)
    manager.scan()
    manager.scan()
    assert world.log.side_records("expiry") == []


def test_scanners_choose_by_kind() -> None:
    world = RecoveryWorld()
    world.die()
    world.log.record_heuristic(Heuristic(make_gtrid(NODE, "strange00000", 1), "0:a:L", "a", "commit", "rolled back"))
    expiry = Expiry(1e-9, [KindScanner(Kind.HEURISTIC)])
    manager = manager_with(world)
    manager._expiry = expiry
    manager.scan()
    assert [Entry(Kind.HEURISTIC, make_gtrid(NODE, "strange00000", 1))] == [
        Entry(Kind(each.kind), each.name) for _ in [manager.scan()] for each in manager.expired()
    ]


def test_31_what_somebody_else_has_prepared_keeps_no_incarnation() -> None:
    world = RecoveryWorld()
    xid = make_xid(world.gtrid, 9, "a", decider="nosuch")
    world.a.forged[xid] = frozenset({"mallory"})
    manager = greedy(world)
    world.die()
    manager.scan()
    manager.scan()
    assert world.disk.expired == {world.incarnation}
    manager.scan()
    assert world.disk.expired == {world.incarnation}, "nor does it bring one back"
    assert world.a.forged


def test_very_many_heuristic_outcomes_expire_without_a_look_at_each_other() -> None:
    looks = 0

    class Looked(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal looks
            looks += 1
            return str.__eq__(self, other)

    world = RecoveryWorld()
    world.die()
    for number in range(400):
        gtrid = Looked(make_gtrid(NODE, world.incarnation, number))
        world.log.record_heuristic(Heuristic(gtrid, "0:a:L", "a", "commit", "lost"))
    looks = 0
    assert len(greedy(world).scan().expired) == 400
    assert not world.disk.heuristics
    assert looks < 40_000
