"""Counters and histograms, for any thread.

A counter counts from the process's start, and counting one takes a single step of the interpreter. A histogram needs
a clock and a lock, so busy paths observe only while `armed`: once somebody reads the metrics.
"""

from __future__ import annotations

import itertools
import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from txpool.locks import Lock, RLock

logger = logging.getLogger("txpool")

#: Upper bounds of the buckets, in seconds.
BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)

Labels = tuple[str, ...]
Listener = Callable[[Labels, float], object]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment: how many fell into each bucket (the last has no upper bound), and their sum."""

    counts: tuple[int, ...]
    sum: float


class Counter:
    """A total that only grows. Thread-safe."""

    __slots__ = ("_reads", "_total", "one")

    def __init__(self) -> None:
        self._total = itertools.count()
        self._reads = 0
        #: Count one. It is the step of an iterator in C, which needs no lock. Reading the total is a step, too.
        self.one: Callable[[], int] = self._total.__next__

    def value(self) -> int:
        """The total."""
        with _reading:
            total = next(self._total) - self._reads
            self._reads += 1
            return total

    def restart(self) -> None:
        """Count from zero again."""
        total = self.value()
        self._reads += total


class Histogram:
    """Durations, in one distribution for each combination of labels. Thread-safe."""

    def __init__(self) -> None:
        # Reentrant, since a finaliser that gives a connection back may run in a thread that holds it.
        self._lock = RLock()
        self._distributions: dict[Labels, tuple[list[int], list[float]]] = {}
        #: Called with each observation (by a bridge to other histograms); their errors are logged.
        self.listeners: list[Listener] = []

    def observe(self, seconds: float, *labels: str) -> None:
        """Add a duration."""
        with self._lock:
            distribution = self._distributions.get(labels)
            if distribution is None:
                distribution = self._distributions.setdefault(labels, ([0] * (len(BOUNDS) + 1), [0.0]))
            distribution[0][bisect_left(BOUNDS, seconds)] += 1
            distribution[1][0] += seconds
        for listener in self.listeners:
            try:
                listener(labels, seconds)
            except Exception:
                logger.exception("a listener of a histogram failed; what is measured goes on")

    def read(self) -> Iterator[tuple[Labels, Distribution]]:
        """Every distribution, by its labels."""
        with self._lock:
            found = [
                (labels, Distribution(tuple(counts), total[0]))
                for labels, (counts, total) in self._distributions.items()
            ]
        return iter(found)

    def restart(self) -> None:
        """Count from zero again, in a forked child, which has no other thread."""
        self._lock = RLock()
        self._distributions = {}


#: True once somebody reads metrics: durations are measured from then on.
armed = False

_reading = Lock()


def arm() -> None:
    """Measure durations, too, from now on."""
    global armed
    armed = True


def _after_fork_in_child() -> None:
    global _reading
    _reading = Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
