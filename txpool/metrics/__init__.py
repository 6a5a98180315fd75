"""Metrics: counted in plain Python, and read by Prometheus or OpenTelemetry.

`prometheus` and `opentelemetry` need the extra `metrics`; nothing else here does. `collect` returns all numbers of this
moment. `arm` turns on the measuring of durations; both bridges call it.
"""

from __future__ import annotations

from txpool.metrics.catalogue import FAMILIES, Family, MetricKind, reference
from txpool.metrics.instruments import Counter, Distribution, Histogram, arm
from txpool.metrics.registry import HISTOGRAMS, Sample, add_source, collect, remove_source

__all__ = [
    "FAMILIES",
    "HISTOGRAMS",
    "Counter",
    "Distribution",
    "Family",
    "Histogram",
    "MetricKind",
    "Sample",
    "add_source",
    "arm",
    "collect",
    "reference",
    "remove_source",
]
