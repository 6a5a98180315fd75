"""An interrupt at any place of a send or a delivery: what was sent is applied once, or nothing was sent."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import pytest

import txpool
from tests.integration.outbox.conftest import Place
from tests.support.interrupts import at_each_check, codes_of

# The code that is struck is the same for each database.
pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
#: The modules whose places are struck.
MODULES = ("outbox.message", "outbox.once", "outbox.outbox", "outbox.relay", "resources.outbox")


def struck(nth: int, work: Callable[[], object]) -> bool:
    """Run the work with an interrupt at its nth place; whether it has so many."""
    places, hit = itertools.count(1), []

    def strike(_: FrameType) -> None:
        if next(places) == nth:
            hit.append(nth)
            raise KeyboardInterrupt

    codes = {code for name in MODULES for code in codes_of(sys.modules[f"txpool.{name}"])}
    with suppress(KeyboardInterrupt), at_each_check(codes, strike):
        work()
    assert txpool.current() is None
    return bool(hit)


@pytest.mark.costly
def test_a_delivery_that_is_interrupted(place: Place) -> None:
    for number in itertools.count(1):
        place.send(f"{number}.1", f"{number}.2", key="k")
        more = struck(number, place.outbox.relay(place.apply).deliver_all)
        place.outbox.relay(place.apply).deliver_all()
        if not more:
            break
    assert number > 100
    assert place.applied() == [f"{each}.{part}" for each in range(1, number + 1) for part in (1, 2)]
    assert (place.left(), place.orders.statistics().taken) == (0, 0)


def test_a_send_that_is_interrupted_has_sent_nothing(place: Place) -> None:
    """Also if the program goes on, and commits: what may have been sent rolls back with all else."""
    sent: list[str] = []
    committed: list[str] = []

    def send() -> None:
        sent.clear()
        with txpool.transaction():
            for each in ("1", "2"):
                with suppress(KeyboardInterrupt):
                    place.outbox.send(f"{number}.{each}", key="k")
                    sent.append(f"{number}.{each}")
        committed.extend(sent)

    rolled_back = 0
    for number in itertools.count(1):
        try:
            if not struck(number, send):
                break
        except (txpool.TransactionRolledBack, txpool.ProgrammingError):
            rolled_back += 1
    assert rolled_back > 10
    place.outbox.relay(place.apply).deliver_all()
    assert place.applied() == committed
    assert committed[-2:] == [f"{number}.1", f"{number}.2"]
