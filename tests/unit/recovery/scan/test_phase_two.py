"""How a pass ends its branches: all are started before an answer is awaited, and no connection outlives the pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.models.recovery import RecoveryWorld, logged, world_after
from tests.models.recovery_databases import Calls, ModelDatabase
from txpool.resources.base import Branch, BranchOutcome, BranchRecord


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
    assert ends == [f"a.{outcome}", f"b.{outcome}", "a.awaited", "b.awaited"]
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
