"""An exception at every place of a block's life at which one may come, and a second one in what the first has started.

All first places are struck in each run, in each world with the end and the kind of exception that the seed chooses, and
the same few of the second ones; TXPOOL_CRASH_FULL=1 strikes all with each.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import txpool
from tests.integration.interrupts.worlds import WORLDS, World, world_of
from tests.support.places import Striker, at_each_place
from tests.support.sampling import FULL

#: How many pairs of places are chosen for each test.
PAIRS = 20

pytestmark = [
    # An interrupt in a finaliser is shown, and swallowed.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # A connection that was interrupted within the driver's own connect is closed as it is dropped.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


class TimeLimit(Exception):
    """Stands for Celery's SoftTimeLimitExceeded, and what other handlers of signals raise."""


#: By default the drivers over which the sweep has been seen to hold; all by the flag. A last resource has its own test.
SWEPT = [name for name in WORLDS if FULL or not name.startswith(("mysqlclient", "jdbc", "sqlite3 last"))]
TWICE = WORLDS if FULL else ["psycopg", "sqlite3", "sqlite3 last"]


@pytest.fixture(params=SWEPT)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, request, tmp_path) as world:
        yield world


def strike(world: World, striker: Striker, *, fails: bool) -> bool:
    """Do the work while it strikes; whether the rows are there. What was told must agree with them."""
    told: BaseException | None = None
    with suppress(txpool.Error):  # the log opens again where the last strike has closed it: else only that is struck
        world.work(fails=False)
    try:
        with at_each_place(striker):
            world.work(fails=fails)
    except (Interrupt, TimeLimit, ZeroDivisionError, txpool.Error) as error:
        told = error
    if isinstance(told, ZeroDivisionError) and not striker.places:
        told.add_note(": rolled back")
    if told is not None:
        told.__traceback__ = told.__context__ = told.__cause__ = None
    return world.check(told, (striker.places, told))


@pytest.mark.part(12)
@pytest.mark.parametrize("kind", [Interrupt, TimeLimit])
@pytest.mark.parametrize("fails", [False, True], ids=["commit", "rollback"])
def test_at_every_place(world: World, kind: type[BaseException], fails: bool) -> None:
    strike_everywhere(world, kind, fails=fails)


@pytest.mark.costly
@pytest.mark.parametrize("world", ["sqlite3 last"], indirect=True)
def test_at_every_place_beside_a_last_resource(world: World) -> None:
    strike_everywhere(world, Interrupt, fails=False)


def strike_everywhere(world: World, kind: type[BaseException], *, fails: bool) -> None:
    strike(world, Striker(1 << 30, kind), fails=fails)  # what is made once
    committed = 0
    for nth in itertools.count():
        striker = Striker(nth, kind)
        there = strike(world, striker, fails=fails)
        if not striker.places:
            assert there is not fails
            break
        committed += there
    world.every_pool_has_its_size()
    print(f"struck at {nth} places, {committed} times committed")
    assert nth > 100


@pytest.mark.slow
@pytest.mark.parametrize("world", TWICE, indirect=True)
@pytest.mark.parametrize("kind", [Interrupt, TimeLimit])
@pytest.mark.parametrize(
    "fails", [False, True] if FULL else [False], ids=["commit", "rollback"] if FULL else ["commit"]
)
def test_twice(world: World, kind: type[BaseException], fails: bool) -> None:
    for _ in range(2):
        whole = Striker(1 << 30, kind)
        strike(world, whole, fails=fails)
    chance, pairs = random.Random(f"{[each.name for each in world.sources]} {kind.__name__} {fails}"), 0
    firsts = range(whole.seen) if FULL else sorted(chance.choices(range(whole.seen), k=PAIRS))
    for first in firsts:
        seconds: Iterator[int] = itertools.count()
        if not FULL:
            once = Striker(first, kind, 1 << 30)
            strike(world, once, fails=fails)
            seconds = iter([chance.randrange(once.seen)] if once.seen else [])
        for second in seconds:
            striker = Striker(first, kind, second)
            strike(world, striker, fails=fails)
            if len(striker.places) < 2:
                break
            pairs += 1
    world.every_pool_has_its_size()
    print(f"struck twice {pairs} times")
    assert pairs > (whole.seen if FULL else PAIRS / 2)
