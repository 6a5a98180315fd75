"""The numbers of this process's transactions: how many began, how they ended, how long each phase took."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from txpool.metrics import HISTOGRAMS, Counter, Sample, add_source, instruments
from txpool.metrics.catalogue import BEGUN, ENDED, PHASE_SECONDS, SETTLED
from txpool.tm.commit.phase import Phase
from txpool.tm.commit.request import Outcome

if TYPE_CHECKING:
    from txpool.tracing import Trace

_begun = Counter()
_prepared = Counter()
_ended = {outcome: Counter() for outcome in Outcome}
_resolved = {outcome: Counter() for outcome in Outcome}

#: Count a transaction that begins.
begun = _begun.one
#: By its outcome: count a transaction that ends for its caller.
ended = {outcome: counter.one for outcome, counter in _ended.items()}
#: Count a Spark task's part of one that has ended prepared.
prepared = _prepared.one


def resolved(outcome: Outcome, trace: Trace | None = None) -> None:
    """Count one that was in doubt, or not finished, for its caller and has ended now; and report it to its trace."""
    _resolved[outcome].one()
    if trace is not None:
        trace.resolved(outcome)


class Stopwatch:
    """A phase listener that measures the phases of one transaction's end."""

    __slots__ = ("_phase", "_since")

    def __init__(self) -> None:
        self._phase: Phase | None = None
        self._since = 0.0

    def __call__(self, phase: Phase) -> None:
        now = perf_counter()
        if self._phase is not None:
            _phase_seconds.observe(now - self._since, _LABELS[self._phase.value])
        self._phase = None if phase is Phase.ENDED or phase is Phase.IN_DOUBT else phase
        self._since = now


def phase_listener(trace: Trace | None) -> Callable[[Phase], object] | None:
    """The phase listener of one transaction: its trace, and a stopwatch if durations are measured."""
    listeners = ([Stopwatch()] if instruments.armed else []) + ([trace.phase] if trace is not None else [])
    if len(listeners) < 2:
        return listeners[0] if listeners else None

    def both(phase: Phase) -> None:
        for listener in listeners:
            listener(phase)

    return both


_phase_seconds = HISTOGRAMS[PHASE_SECONDS]

#: The label of each phase in metrics, by its value.
_LABELS = {each.value: each.exported for each in Phase}


def _samples() -> Iterator[Sample]:
    yield Sample(BEGUN, (), _begun.value())
    yield Sample(ENDED, ("prepared",), _prepared.value())
    for family, counters in ((ENDED, _ended), (SETTLED, _resolved)):
        for outcome, counter in counters.items():
            yield Sample(family, (outcome.name.lower(),), counter.value())


def _after_fork_in_child() -> None:
    for counter in (_begun, _prepared, *_ended.values(), *_resolved.values()):
        counter.restart()


add_source(_samples)
os.register_at_fork(after_in_child=_after_fork_in_child)
