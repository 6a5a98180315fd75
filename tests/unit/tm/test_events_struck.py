"""A block's callbacks and observers, struck at every place and again behind it: none is called twice.

One that an interrupt hits is not called again. No other one is lost with it, and the interrupt is raised.
By default the second interrupt comes at one in eight of the places that follow; TXPOOL_CRASH_FULL=1 strikes all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

import txpool
from tests.support.places import Striker, at_each_place, strike_each_pair
from tests.support.sampling import FULL
from txpool.tm import events, manager

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
#: What is called behind a commit, once each.
AFTER = frozenset({"first callback", "second callback", "observer", "observer of success", "observer of the event"})


class StruckHere(BaseException):
    pass


@dataclass
class Event:
    gtrid: str


#: What was called, and with which transaction: those that an earlier strike has left may end meanwhile.
Called = list[tuple[str, str]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[Called]:
    called: Called = []
    monkeypatch.setattr(events, "_observers", {})
    before = list(manager.observers)
    txpool.observe(lambda tx: called.append(("observer", tx.gtrid)), "after")
    txpool.observe(lambda tx: called.append(("observer of success", tx.gtrid)), "success")
    txpool.observe(lambda event: called.append(("observer of the event", event.gtrid)), "after", Event)
    yield called
    manager.observers[:] = before


def strike(called: Called, striker: Striker) -> None:
    called.clear()
    raised = False
    begun: list[txpool.Transaction] = []
    try:
        with at_each_place(striker), txpool.transaction() as tx:
            tx.before_completion(lambda: called.append(("before", tx.gtrid)))
            tx.after_completion(lambda _: called.append(("first callback", tx.gtrid)))
            tx.after_completion(lambda _: called.append(("second callback", tx.gtrid)))
            tx.fire(Event(tx.gtrid))
            begun.append(tx)
    except (StruckHere, txpool.Error):
        raised = True
    assert max(Counter(called).values(), default=0) <= 1, (striker.places, called)
    if not begun or begun[0].status is not txpool.Status.COMMITTED:
        return
    missing = AFTER - {name for name, gtrid in called if gtrid == begun[0].gtrid}
    assert len(missing) <= len(striker.places), (striker.places, missing)
    assert raised or not missing, (striker.places, missing)


def test_under_two_interrupts(called: Called) -> None:
    strike(called, Striker(1 << 30, StruckHere))
    assert {name for name, _ in called} == AFTER | {"before"}
    places, pairs = strike_each_pair(StruckHere, partial(strike, called), every=1 if FULL else 8)
    print(f"{places} places, {pairs} pairs")
    assert places > 50
