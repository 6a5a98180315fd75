"""Events that are fired in a transaction: who is told of them, when, and in which order."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import txpool
from tests.support.forking import in_child
from txpool.tm import events, transaction
from txpool.tm import manager as _manager
from txpool.tm.completion.synchronizations import Synchronizations


@dataclass(frozen=True)
class Ordered:
    number: int


class Repeated(Ordered):
    pass


Observe = Callable[..., Callable[[], None]]


@pytest.fixture
def observe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Observe]:
    monkeypatch.setattr(events, "_observers", {})
    before = list(_manager.observers)
    yield txpool.observe
    _manager.observers[:] = before


@pytest.fixture
def heard(observe: Observe) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for phase in ("before", "success", "failure", "after"):
        observe(lambda event, phase=phase: found.append((phase, event.number)), phase, Ordered)
    return found


def test_each_phase_is_told_in_the_order_of_fire(heard: list[tuple[str, int]]) -> None:
    with txpool.transaction() as tx:
        tx.fire(Ordered(1))
        tx.fire(Repeated(2))
        tx.fire("nobody observes a text")
        assert heard == []
    assert heard == [("before", 1), ("before", 2), ("success", 1), ("after", 1), ("success", 2), ("after", 2)]


def test_a_rollback_is_told_only_afterwards(heard: list[tuple[str, int]]) -> None:
    with pytest.raises(ZeroDivisionError), txpool.transaction() as tx:
        tx.fire(Ordered(1))
        raise ZeroDivisionError
    assert heard == [("failure", 1), ("after", 1)]


def test_a_joined_block_fires_in_the_whole(heard: list[tuple[str, int]]) -> None:
    with txpool.transaction():
        with txpool.transaction() as inner:
            inner.fire(Ordered(1))
        assert heard == []
    assert ("success", 1) in heard


def test_an_exception_before_completion_forces_rollback(observe: Observe, heard: list[tuple[str, int]]) -> None:
    def refuse(event: Ordered) -> None:
        raise ValueError("too many")

    observe(refuse, "before", Ordered)
    with pytest.raises(txpool.TransactionRolledBack, match="too many"), txpool.transaction() as tx:
        tx.fire(Ordered(1))
    assert heard == [("before", 1), ("failure", 1), ("after", 1)]


def test_what_is_fired_while_others_are_told_is_told_too(observe: Observe, heard: list[tuple[str, int]]) -> None:
    def again(event: Ordered) -> None:
        if event.number < 3 and (tx := txpool.current()) is not None:
            tx.fire(Ordered(event.number + 1))

    observe(again, "before", Ordered)
    with txpool.transaction() as tx:
        tx.before_completion(partial(tx.fire, Ordered(1)), interposed=True)
    assert [number for phase, number in heard if phase == "before"] == [1, 2, 3]
    assert [number for phase, number in heard if phase == "success"] == [1, 2, 3]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_each_is_told_whatever_comes_of_the_one_before(
    observe: Observe, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def fail(event: Ordered) -> None:
        raise error("of an observer")

    observe(fail, "success", Ordered)
    observe(lambda event: heard.append("second"), "success", Ordered)
    raised: BaseException | None = None
    try:
        with txpool.transaction() as tx:
            tx.fire(Ordered(1))
            tx.fire(Ordered(2))
    except KeyboardInterrupt as interrupt:
        raised = interrupt
    assert heard == ["second", "second"]
    assert tx.status is txpool.Status.COMMITTED
    assert (raised is None) == (error is ValueError)
    assert ("the outcome stands" in caplog.text) == (error is ValueError)


def test_who_has_stopped_is_told_no_more(observe: Observe) -> None:
    heard: list[Any] = []
    stop_events = observe(heard.append, "after", Ordered)
    stops = [observe(heard.append, phase) for phase in ("begin", "before", "success", "after")]
    with txpool.transaction() as tx:
        tx.fire(Ordered(1))
        assert heard == [tx]
        for stop in (stop_events, *stops, *stops):
            stop()
    with txpool.transaction():
        pass
    assert heard == [tx]


def test_after_is_told_of_every_transaction(observe: Observe) -> None:
    heard: list[txpool.Transaction] = []
    observe(heard.append, "after")
    with txpool.transaction() as good:
        pass
    with pytest.raises(ZeroDivisionError), txpool.transaction() as bad:
        raise ZeroDivisionError
    assert heard == [good, bad]


def test_an_exception_at_begin_is_raised_there_and_none_has_begun(observe: Observe) -> None:
    def refuse(begun: txpool.Transaction) -> None:
        raise ValueError("not now")

    stop = observe(refuse, "begin")
    with pytest.raises(ValueError, match="not now"), txpool.transaction():
        raise AssertionError
    assert txpool.current() is None
    stop()
    with txpool.transaction() as tx:
        pass
    assert tx.status is txpool.Status.COMMITTED


def test_an_event_is_not_fired_where_nothing_can_follow(observe: Observe) -> None:
    with txpool.transaction() as tx:
        pass
    with pytest.raises(txpool.ProgrammingError):
        tx.fire(Ordered(1))
    with pytest.raises(txpool.ProgrammingError, match="no phase 'begin' to observe: these are before, success"):
        observe(print, "begin", Ordered)
    with pytest.raises(txpool.ProgrammingError, match="observed by their class, and 'Ordered' is none"):
        observe(print, "success", "Ordered")


def test_who_must_be_awaited_cannot_observe(observe: Observe) -> None:
    async def awaited(event: object) -> None:
        raise AssertionError(event)

    for arguments in (("success", Ordered), ("begin",)):
        with pytest.raises(txpool.ProgrammingError, match="nobody would await"):
            observe(awaited, *arguments)


def test_nobody_is_told_before_a_rollback(observe: Observe) -> None:
    heard: list[int] = []

    def refuse(event: Ordered) -> None:
        heard.append(event.number)
        if (tx := txpool.current()) is not None:
            tx.set_rollback_only()

    observe(refuse, "before", Ordered)
    observe(lambda event: heard.append(-event.number), "before", Ordered)
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction() as tx:
        tx.fire(Ordered(1))
        tx.fire(Ordered(2))
    assert heard == [1]


@pytest.mark.parametrize("phase", ["before", "success", "begin"])
def test_one_that_stops_as_it_is_told_keeps_it_from_no_other(observe: Observe, phase: str) -> None:
    heard: list[str] = []
    of = () if phase == "begin" else (Ordered,)

    def once(_: object) -> None:
        heard.append("first")
        stop()
        stop_last()

    stop = observe(once, phase, *of)
    observe(lambda _: heard.append("second"), phase, *of)
    stop_last = observe(lambda _: heard.append("stopped"), phase, *of) if of else stop
    for _ in range(2):
        with txpool.transaction() as tx:
            tx.fire(Ordered(1))
    assert heard == ["first", "second", "second"]


def test_a_forked_child_cannot_fire_in_its_parents_transaction(heard: list[tuple[str, int]]) -> None:
    def fire() -> None:
        with pytest.raises(txpool.ProgrammingError, match="is the parent process's"):
            tx.fire(Ordered(1))

    with txpool.transaction() as tx:
        in_child(fire)
    assert heard == []


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("often")
def test_threads_may_observe_and_stop_at_once(observe: Observe) -> None:
    heard: list[int] = []

    def come_and_go(number: int) -> None:
        for _ in range(200):
            observe(print, "success", Ordered)()
            observe(print, "success")()
            observe(lambda event: heard.append(number), "success", Ordered)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(come_and_go, range(8)))
    with txpool.transaction() as tx:
        tx.fire(Ordered(1))
    assert sorted(heard) == sorted([*range(8)] * 200)


@pytest.mark.usefixtures("often")
def test_nothing_that_threads_fire_or_register_is_lost(observe: Observe, monkeypatch: pytest.MonkeyPatch) -> None:
    class Made(Synchronizations):
        def __init__(self) -> None:
            time.sleep(0.001)  # others come meanwhile
            super().__init__()

    monkeypatch.setattr(transaction, "Synchronizations", Made)
    heard: list[int] = []
    observe(lambda event: heard.append(event.number), "success", Ordered)
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            with txpool.transaction() as tx:
                works: list[Callable[[], object]] = [partial(tx.fire, Ordered(number)) for number in range(7)]
                works.append(partial(tx.after_completion, lambda _: heard.append(7)))
                done = [threads.submit(work) for work in works]
                for each in done:
                    each.result()
            assert sorted(heard) == list(range(8))
            heard.clear()


@pytest.mark.parametrize("status", [txpool.Status.IN_DOUBT, txpool.Status.PREPARED])
def test_what_is_not_known_is_no_failure(heard: list[tuple[str, int]], status: txpool.Status) -> None:
    synchronizations = Synchronizations()
    events.Events(synchronizations).fire(Ordered(1))
    synchronizations.call_after(status)
    assert heard == [("after", 1)]
