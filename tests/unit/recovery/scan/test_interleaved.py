"""Recovery against a coordinator that moves meanwhile, dies, or has lost its lock; against itself; and interrupted.

Whatever is interleaved with whatever: no mix of outcomes, and in the end nothing is prepared and nothing is kept.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from tests.crash.evidence import SEED
from tests.models.recovery import RecoveryWorld, logged, marked, pointed, unaccounted
from tests.models.recovery_databases import Calls
from tests.support.sampling import FULL

Steps = Callable[[RecoveryWorld], Iterator[str]]
COORDINATORS: list[Steps] = [logged, unaccounted, marked, pointed]
#: The part of all pairs of calls that is tried, another one with each seed (TXPOOL_CRASH_SEED).
PART = 1.0 if FULL else 0.25


def count_of(steps: Steps) -> int:
    return sum(1 for _ in steps(RecoveryWorld()))


def advance(running: Iterator[str], count: int) -> None:
    for _ in range(count):
        next(running, None)


def check(world: RecoveryWorld, what: object) -> None:
    """After the process has died and two more scans: one outcome, and nothing left."""
    assert len(world.outcomes()) <= 1, (what, world.calls.names)
    world.calls.before = lambda number: None
    world.die()
    world.scan()
    world.scan()
    assert len(world.outcomes()) <= 1, (what, world.calls.names)
    assert world.is_clean(), (what, world.disk, world.a.prepared, world.b.prepared, world.ledger.rows)


@pytest.mark.costly
@pytest.mark.parametrize("lost", [False, True], ids=["", "lock-lost"])
@pytest.mark.parametrize("steps", COORDINATORS)
def test_a_coordinator_that_moves_between_any_two_readings(steps: Steps, lost: bool) -> None:
    """It moves at one call of recovery's, and moves again or dies at a later one."""
    total = count_of(steps)
    runs, chance = 0, random.Random(SEED)
    for start, moves in itertools.product(range(total + 1), range(1, total + 1)):
        if start + moves > total + 1:
            continue
        first, second, count = 0, 0, 1
        while first < count:
            for dies in (False, True):
                if first + second and chance.random() > PART:
                    continue
                world = RecoveryWorld()
                running = steps(world)
                advance(running, start)
                if lost:
                    world.lose()

                def move(
                    number: int, world: RecoveryWorld = world, running: Iterator[str] = running, dies: bool = dies
                ) -> None:
                    if number == first:
                        advance(running, moves)
                    if number == second:
                        world.die() if dies else advance(running, total)

                world.calls.before = move
                world.one_pass()
                count = len(world.calls.names)
                check(world, (SEED, start, moves, first, second, dies))
                runs += 1
            second += 1
            if second >= count:
                first += 1
                second = first
    assert runs > 300 * PART


@pytest.mark.parametrize("steps", COORDINATORS)
def test_a_recovery_that_is_interrupted_at_any_call_and_starts_again(steps: Steps) -> None:
    for done in range(count_of(steps) + 1):
        for stop in itertools.count():
            world = RecoveryWorld()
            advance(running := steps(world), done)
            world.die()
            del running

            def interrupt(number: int, stop: int = stop) -> None:
                if number == stop:
                    raise KeyboardInterrupt

            world.calls.before = interrupt
            try:
                world.scan()
            except KeyboardInterrupt:
                check(world, (done, stop))
                continue
            check(world, (done, stop))
            break
        assert stop > 5


@pytest.mark.costly
@pytest.mark.parametrize("steps", COORDINATORS)
def test_a_second_recoverer_that_does_it_all_within_any_call_of_the_first(steps: Steps) -> None:
    for done in range(count_of(steps) + 1):
        for at in itertools.count():
            world = RecoveryWorld()
            running = steps(world)
            advance(running, done)
            world.die()
            calls = world.calls

            def other(number: int, world: RecoveryWorld = world, at: int = at, calls: Calls = calls) -> None:
                if number == at:
                    calls.before = lambda number: None
                    world.recoverer().scan()

            calls.before = other
            report = world.scan()
            assert not report.errors
            reached = len(calls.names) > at
            check(world, (done, at))
            if not reached:
                break
