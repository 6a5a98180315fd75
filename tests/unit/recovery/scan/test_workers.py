"""Workers: waits run in parallel, one barrier stays, and a datasource that hangs has one thread at most."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from recovery import RecoveryManager
from recovery.scan.datasources.workers import NoAnswer, Workers
from tests.models.recovery import RecoveryWorld, logged, marked, world_after
from tests.support.waiting import until
from txpool.config.settings import RecoverySettings
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.deadlines import within_step
from txpool.resources.recovery_access import MarkedRow, PreparedBranch

#: Longer than anything here takes; only code that is wrong waits so long.
_LONG = 60.0
#: Seconds of a step: enough for what does not hang, on a busy machine too.
_STEP = 3


class HangingDatabase:
    """Lets the named calls of a model database hang until `released` is set."""

    def __init__(self, world: RecoveryWorld, *calls: str) -> None:
        self.released = threading.Event()
        self.asked = 0
        self._database = world.b
        self._recover, self._commit = world.b.recover, world.b.commit
        for name in calls:
            setattr(world.b, name, getattr(self, name))

    def recover(self) -> list[PreparedBranch]:
        self._hang()
        return self._recover()

    def commit(self, record: BranchRecord) -> BranchOutcome:
        self._hang()
        return self._commit(record)

    def _hang(self) -> None:
        self.asked += 1
        self.released.wait(_LONG)


def hurried(world: RecoveryWorld) -> RecoveryManager:
    settings = RecoverySettings.load(node_name="etl-1", recovery_step_timeout=f"{_STEP}s")
    return RecoveryManager(settings, log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0)


@pytest.fixture
def workers() -> Iterator[Workers]:
    """For calls that all hang."""
    workers = Workers(0.1)
    yield workers
    until(lambda: not workers.stuck)
    workers.rest()


def test_37_a_listing_that_comes_after_the_barrier_is_discarded() -> None:
    world = world_after(logged, "b prepared")
    hanging = HangingDatabase(world, "recover")
    world.recovery = hurried(world)

    def release(number: int) -> None:
        if world.calls.names[number] == "decisions":
            hanging.released.set()

    world.calls.before = release
    report = world.scan()
    # Had the late listing counted as the first pass's, the second would have rolled that branch back.
    assert [ended.datasource for ended in report.rolled_back] == ["a"]
    assert world.b.prepared
    until(lambda: not world.recovery.stuck)
    world.scan()
    assert world.outcomes() == {"rolled back"}
    assert world.is_clean()


@pytest.mark.parametrize(("steps", "last"), [(logged, "decided"), (marked, "decided")])
def test_one_that_hangs_holds_up_no_other_and_nothing_is_forgotten(steps: object, last: str) -> None:
    world = world_after(steps, last)  # type: ignore[arg-type]
    hanging = HangingDatabase(world, "recover")
    world.recovery = hurried(world)
    report = world.scan()
    assert set(report.unreachable) == {"b"}
    assert list(world.a.ended.values()) == [BranchOutcome.COMMITTED]
    assert world.disk.outcomes or world.ledger.rows
    hanging.released.set()
    until(lambda: not world.recovery.stuck)
    world.scan()
    assert world.outcomes() == {"committed"}
    world.scan()
    assert world.is_clean()


def test_a_marked_one_that_hangs_decides_nothing() -> None:
    world = world_after(marked, "decided")
    released, read = threading.Event(), world.ledger.read

    def hang() -> list[MarkedRow]:
        released.wait(_LONG)
        return read()

    world.ledger.read = hang  # type: ignore[method-assign]
    world.recovery = hurried(world)
    assert set(world.scan().unreachable) == {"ledger"}
    assert world.a.prepared
    assert world.b.prepared
    assert not world.a.ended
    assert not world.b.ended
    released.set()
    until(lambda: not world.recovery.stuck)
    world.scan()
    assert world.outcomes() == {"committed"}


def test_a_commit_without_an_answer_keeps_the_decision() -> None:
    world = world_after(logged, "decided")
    hanging = HangingDatabase(world, "commit")
    world.recovery = hurried(world)
    report = world.scan()
    (left,) = report.left_alone
    assert (left.datasource, left.error) == ("b", f"NoAnswer: no answer within {_STEP} s (recovery.step-timeout)")
    assert list(world.a.ended.values()) == [BranchOutcome.COMMITTED]
    assert world.disk.outcomes
    hanging.released.set()
    until(lambda: not world.recovery.stuck)
    world.scan()
    assert world.is_clean()


def test_it_has_one_thread_and_is_asked_once_however_many_passes_there_are() -> None:
    world = world_after(logged, "decided")
    hanging = HangingDatabase(world, "recover")
    world.recovery = hurried(world)
    for _ in range(3):
        assert set(world.scan().unreachable) == {"b"}
    assert hanging.asked == 1
    assert world.recovery.stuck == ["b"]
    assert [thread.name for thread in threading.enumerate()].count("txpool-recovery-b") == 1
    assert "no answer to an earlier question" in world.scan().unreachable["b"]
    hanging.released.set()
    until(lambda: not world.recovery.stuck)
    assert not world.scan().unreachable
    assert hanging.asked > 1


def test_the_thread_is_stopped_while_a_database_hangs() -> None:
    world = world_after(logged, "decided")
    hanging = HangingDatabase(world, "recover")
    settings = RecoverySettings.load(node_name="etl-1", recovery_step_timeout="1h")
    manager = RecoveryManager(settings, log=world.log, datasources=[world.a, world.b], backoff=0)
    manager.start()
    until(lambda: hanging.asked)
    manager.stop()
    assert manager.last_report is not None
    assert set(manager.last_report.unreachable) == {"b"}
    assert list(world.a.ended.values()) == [BranchOutcome.COMMITTED]
    hanging.released.set()
    until(lambda: not manager.stuck)
    assert not manager.scan().unreachable


def test_what_is_queued_behind_a_stuck_call_is_never_executed_but_for_the_tidying(workers: Workers) -> None:
    released, executed = threading.Event(), list[str]()
    stuck = workers.start("a", partial(released.wait, _LONG))
    queued = workers.start("a", lambda: executed.append("queued"))
    with pytest.raises(NoAnswer):
        stuck.wait()
    workers.tidy("a", lambda: executed.append("tidied"))
    for call in (queued, workers.start("a", lambda: executed.append("refused"))):
        with pytest.raises(NoAnswer):
            call.wait()
    released.set()
    until(lambda: executed)
    assert executed == ["tidied"]


def test_a_driver_sends_nothing_once_the_step_is_over(workers: Workers) -> None:
    released, sent = threading.Event(), list[object]()

    def act() -> None:
        released.wait(_LONG)
        sent.append(within_step())

    with pytest.raises(NoAnswer):
        workers.start("a", act).wait()
    released.set()
    until(lambda: not workers.stuck)
    assert sent == []


def test_the_error_of_a_call_is_its_own() -> None:
    def fail() -> None:
        raise KeyError("x")

    workers = Workers(_LONG)
    with pytest.raises(KeyError):
        workers.start("a", fail).wait()
    assert workers.start("a", lambda: 7).wait() == 7
    workers.rest()
