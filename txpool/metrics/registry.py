"""The registry of metrics: sources, which the other packages add, and the histograms."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from txpool.metrics.catalogue import FAMILIES, Family, MetricKind
from txpool.metrics.instruments import Histogram, Labels


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one family; `labels` are the values of the family's."""

    family: Family
    labels: Labels
    #: A number, or the Distribution of a histogram.
    value: Any


Source = Callable[[], Iterable[Sample]]

_sources: list[Source] = []

#: The histogram of each family of that kind.
HISTOGRAMS = {family: Histogram() for family in FAMILIES if family.kind is MetricKind.HISTOGRAM}


def add_source(source: Source) -> None:
    """Let `collect` call this source, too; its samples must be of other families than those of the other sources."""
    if source not in _sources:
        _sources.append(source)


def remove_source(source: Source) -> None:
    """Do not call this source any longer."""
    if source in _sources:
        _sources.remove(source)


def collect() -> list[Sample]:
    """Every number of this process at this moment. Thread-safe."""
    measured = [
        Sample(family, labels, distribution)
        for family, histogram in HISTOGRAMS.items()
        for labels, distribution in histogram.read()
    ]
    return [*measured, *(sample for source in list(_sources) for sample in source())]


def _after_fork_in_child() -> None:
    for histogram in HISTOGRAMS.values():
        histogram.restart()


os.register_at_fork(after_in_child=_after_fork_in_child)
