"""Signals at random moments, as Ctrl-C and soft time limits come: thousands of transactions, and nothing is left.

TXPOOL_CRASH_FULL=1 sends a hundred thousand. The seed (TXPOOL_CRASH_SEED) chooses the moments.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.crash.evidence import SEED
from tests.integration.interrupts.worlds import World, world_of
from tests.support.sampling import FULL

#: How many signals there are, over all worlds.
SIGNALS = 100_000 if FULL else 2_000
WORLDS = ("psycopg", "sqlite3")

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class TimeLimit(Exception):
    """Stands for Celery's SoftTimeLimitExceeded."""


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, request, tmp_path) as world:
        yield world


@pytest.mark.costly
def test_at_any_moment(world: World) -> None:
    chance = random.Random(f"{SEED} {world.sources}")
    sent = came = 0
    armed = False
    heard: Counter[str] = Counter()

    def handle(*_: Any) -> None:
        nonlocal sent
        if armed and sent < came + 2:  # not a third one
            sent += 1
            raise chance.choice((KeyboardInterrupt, TimeLimit))

    def work() -> BaseException | None:
        """One transaction under fire; the second signal comes soon after the first, or not at all."""
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00005, longest), chance.choice((0, 0.0002)))
            world.work(fails=chance.random() < 0.3)
        except (KeyboardInterrupt, TimeLimit, ZeroDivisionError, txpool.Error) as error:
            error.__traceback__ = error.__context__ = error.__cause__ = None
            return error
        return None

    def once() -> BaseException | None:
        """Behind it none comes: of two signals neither keeps all of three from that."""
        nonlocal armed
        try:
            try:
                try:
                    return work()
                finally:
                    armed = False
            finally:
                armed = False
        finally:
            armed = False

    before, longest = signal.signal(signal.SIGALRM, handle), 0.02
    try:
        while sent < SIGNALS / len(WORLDS):
            told, came, armed = None, sent, True
            try:
                told = once()
            except (KeyboardInterrupt, TimeLimit) as error:  # as the work had ended
                told = error
                told.__traceback__ = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            if sent == came:
                longest *= 0.9  # most come while it works
            elif sent == came + 2:
                longest = min(longest * 1.1, 0.05)
            heard[type(told).__name__] += 1
            world.check(told, f"signal {sent}, TXPOOL_CRASH_SEED={SEED}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    world.every_pool_has_its_size()
    print(f"{sent} signals, TXPOOL_CRASH_SEED={SEED}: {dict(heard)}")
    assert heard["KeyboardInterrupt"] + heard["TimeLimit"] > sent / 10
