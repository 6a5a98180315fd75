"""An empty block, struck at every place, and again at places of what follows: nothing of it stays ambient.

A nested one is struck again at one in four of these places; TXPOOL_CRASH_FULL=1 strikes all.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from functools import partial

import pytest

import txpool
from tests.support.places import Striker, at_each_place, strike_each_pair
from tests.support.sampling import FULL
from txpool.tm.ambient import ambient_variable

# An interrupt in a finaliser is shown, and swallowed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupt(BaseException):
    pass


def block() -> None:
    with txpool.transaction():
        pass


def nested() -> None:
    with txpool.transaction():
        new()


@txpool.transactional("requires_new")
def new() -> None:
    pass


def strike(work: object, striker: Striker) -> None:
    with suppress(Interrupt), at_each_place(striker):
        work()  # type: ignore[operator]
    gc.collect(0)
    assert txpool.current() is None, striker.places
    assert ambient_variable.get() is None, striker.places


@pytest.mark.costly
@pytest.mark.parametrize("work", [block, nested])
def test_nothing_stays_ambient(work: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # a JVM would be told of each transaction
    for _ in range(2):
        strike(work, Striker(1 << 30, Interrupt))
    places, pairs = strike_each_pair(Interrupt, partial(strike, work), every=4 if work is nested and not FULL else 1)
    print(f"{places} places, {pairs} pairs")
    assert pairs > 500
