"""Events that are fired in a transaction: who is told of them, when, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import txpool
from txpool.tm import events
from txpool.tm import manager as _manager


@dataclass(frozen=True)
class Ordered:
    number: int


class Repeated(Ordered):
    pass


Observe = Callable[..., Callable[[], None]]


@pytest.fixture
def observe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Observe]:
    monkeypatch.setattr(events, "_observers", ())
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
