"""How a pass ends its branches: all are started before an answer is awaited, and no connection outlives the pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from recovery import RecoveryManager
from recovery.scan.datasources.asking import AskedInTurn
from recovery.scan.datasources.workers import NoAnswer
from recovery.scan.modules.orphans import Ballot
from recovery.scan.phase_two import AskedBranch, BranchEnds
from recovery.scan.snapshot import Snapshot
from tests.models.recovery import RecoveryWorld, logged, world_after
from tests.models.recovery_databases import Calls, ModelDatabase
from txpool.errors import LogError
from txpool.log.base import Heuristic
from txpool.resources.base import Branch, BranchOutcome, BranchRecord
from txpool.tm.commit.progress import PhaseTwoProgress
from txpool.xid import Xid, make_gtrid, make_xid


class SharingDatabase(ModelDatabase):
    """A database whose branches share a connection: a command is carried out when it is sent."""

    def __init__(self, name: str, calls: Calls) -> None:
        super().__init__(name, calls)
        self.open = False
        self.awaited: Callable[[], None] = lambda: None

    def phase_two(self) -> SharingDatabase:
        return self

    def branch(self, record: BranchRecord) -> Branch:
        self.open = True
        return SharingBranch(self, record)

    def close(self) -> None:
        self.open = False


class SharingBranch:
    def __init__(self, database: SharingDatabase, record: BranchRecord) -> None:
        self._database = database
        self.record = record
        self._outcome = BranchOutcome.UNKNOWN

    @property
    def datasource(self) -> str:
        return self._database.name

    def start_commit(self) -> None:
        self._outcome = self._database.commit(self.record)

    def start_rollback(self) -> None:
        self._outcome = self._database.rollback(self.record)

    def await_commit(self) -> BranchOutcome:
        self._database.calls.hit(f"{self.datasource}.awaited")
        self._database.awaited()
        return self._outcome

    await_rollback = await_commit


def sharing_world(last: str) -> tuple[RecoveryWorld, SharingDatabase, SharingDatabase]:
    world = world_after(logged, last)
    a, b = (SharingDatabase(former.name, world.calls) for former in (world.a, world.b))
    a.prepared, b.prepared = world.a.prepared, world.b.prepared
    world.a, world.b = a, b
    world.recovery = world.recoverer()
    return world, a, b


@pytest.mark.parametrize(("last", "outcome"), [("decided", "committed"), ("b prepared", "rolled back")])
def test_both_databases_work_before_either_is_awaited(last: str, outcome: str) -> None:
    world, a, b = sharing_world(last)
    world.scan()
    ends = [name for name in world.calls.names if name.endswith((outcome, "awaited"))]
    assert set(ends[:2]) == {f"a.{outcome}", f"b.{outcome}"}  # each in its own worker
    assert ends[2:] == ["a.awaited", "b.awaited"]
    assert world.outcomes() == {outcome}
    assert world.is_clean()
    assert [a.open, b.open] == [False, False]


def test_an_interrupt_while_a_pass_waits_leaves_no_connection_and_keeps_the_decision() -> None:
    world, a, b = sharing_world("decided")

    def interrupt() -> None:
        raise KeyboardInterrupt

    a.awaited = interrupt
    with pytest.raises(KeyboardInterrupt):
        world.scan()
    assert [a.open, b.open] == [False, False]
    assert world.gtrid in world.disk.outcomes
    a.awaited = lambda: None
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


def test_a_database_that_gives_no_answer_keeps_the_decision() -> None:
    world, a, b = sharing_world("decided")
    b.silent = True
    report = world.scan()
    assert [left.datasource for left in report.pending] == ["b"]
    assert list(a.ended.values()) == [BranchOutcome.COMMITTED]
    assert world.gtrid in world.disk.outcomes
    b.silent = False
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


class Failing:
    """An orphan filter of a user's own that fails over the branches of one datasource."""

    def vote(self, _: Snapshot, xid: Xid) -> Ballot | None:
        if xid.tag == "b":
            raise LookupError("no such tag")
        return None


def test_what_was_started_before_a_filter_failed_is_reported() -> None:
    world, a, b = sharing_world("b prepared")
    world.recovery = RecoveryManager(log=world.log, datasources=[a, b, world.ledger], backoff=0, filters=[Failing()])
    report = world.scan()
    assert list(a.ended.values()) == [BranchOutcome.ROLLED_BACK]
    assert list(b.prepared) == [world.xid(b, 1)]
    assert [ended.datasource for ended in report.rolled_back] == ["a"]
    assert any("no such tag" in reason for reason in report.errors.values())


def test_no_filter_is_asked_about_what_another_module_ends() -> None:
    world, a, b = sharing_world("decided")
    world.recovery = RecoveryManager(log=world.log, datasources=[a, b, world.ledger], backoff=0, filters=[Failing()])
    assert world.scan().errors == {}
    assert world.outcomes() == {"committed"}


def test_what_was_started_is_reported_also_where_the_log_refuses_a_note_of_another_branch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, a, _ = sharing_world("decided")
    record = BranchRecord(world.xid(a), "a", evidence={"xid": "7"})
    decided = world.disk.outcomes[world.gtrid]
    assert decided is not None
    world.disk.outcomes[world.gtrid] = replace(decided, branches=(record, *decided.branches[1:]))
    del a.prepared[record.xid]  # gone, and nobody can say how

    def refuse(*_: Heuristic) -> None:
        raise LogError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(world.log, "record_heuristic", refuse)
        report = world.scan()
    assert [ended.datasource for ended in report.committed] == ["b"]
    assert world.gtrid in world.disk.outcomes
    assert [found.datasource for found in world.scan().heuristics] == ["a"]


class LateAsking:
    """The last answer comes just as nobody waits any more."""

    def start(self, _: str, act: Callable[[], object]) -> Callable[[], object]:
        def wait() -> object:
            act()
            raise NoAnswer("no answer in time")

        return wait

    def tidy(self, _: str, act: Callable[[], object]) -> None:
        act()


def test_answers_that_are_there_as_their_time_ends_count() -> None:
    _, a, _ = sharing_world("decided")
    ends = BranchEnds({"a": a}, LateAsking(), PhaseTwoProgress("it"))  # type: ignore[arg-type]
    branches = [ends.branch("a", a.record(xid)) for xid in a.prepared]
    assert branches
    for branch in branches:
        branch.start_commit()
    assert [branch.await_commit() for branch in branches] == [BranchOutcome.COMMITTED] * len(branches)


def _many_branches(database: SharingDatabase, ends: BranchEnds, count: int) -> list[AskedBranch]:
    xids = [make_xid(make_gtrid("n", "abcdefghijkl", number), 0, "a") for number in range(count)]
    database.prepared |= dict.fromkeys(xids, 0.0)
    return [ends.branch("a", database.record(xid)) for xid in xids]


def test_many_branches_are_sent_while_others_are_started() -> None:
    _, a, _ = sharing_world("decided")
    ends = BranchEnds({"a": a}, AskedInTurn(), PhaseTwoProgress("it"))
    branches = _many_branches(a, ends, 1000)
    for branch in branches[:600]:
        branch.start_commit()
    assert 0 < len(a.ended) < 600
    for branch in branches[600:]:
        branch.start_rollback()
    outcomes = [branch.await_commit() for branch in branches[:600]]
    assert outcomes == [BranchOutcome.COMMITTED] * 600
    assert [branch.await_rollback() for branch in branches[600:]] == [BranchOutcome.ROLLED_BACK] * 400


class SilentAsking:
    """A worker that answers nothing any more: what waits for it says so each time."""

    def __init__(self) -> None:
        self.waited = 0

    def start(self, _name: str, _act: Callable[[], object]) -> Callable[[], object]:
        def wait() -> object:
            self.waited += 1
            raise NoAnswer("no answer in time")

        return wait

    def tidy(self, _name: str, _act: Callable[[], object]) -> None:
        """Nothing."""


def test_a_worker_that_hangs_while_many_are_sent_is_waited_for_before_an_answer() -> None:
    """Else it would not count as stuck, and each answer would be waited for as long again."""
    _, a, _ = sharing_world("decided")
    asking = SilentAsking()
    ends = BranchEnds({"a": a}, asking, PhaseTwoProgress("it"))  # type: ignore[arg-type]
    branches = _many_branches(a, ends, 300)
    for branch in branches:
        branch.start_commit()
    assert asking.waited == 0
    assert branches[0].await_commit() is BranchOutcome.UNKNOWN
    assert asking.waited == 3  # two sends, and one answer
    assert {branch.await_commit() for branch in branches[1:]} == {BranchOutcome.UNKNOWN}
    assert {branch.why_unknown for branch in branches} == {"NoAnswer: no answer in time"}
