"""Metrics for Prometheus, by prometheus_client: `prometheus_client.REGISTRY.register(Collector())`, or `text()`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from txpool.errors import ConfigurationError
from txpool.metrics.catalogue import FAMILIES, Family, MetricKind
from txpool.metrics.instruments import BOUNDS, arm
from txpool.metrics.registry import Sample, collect

try:
    from prometheus_client import core, registry
    from prometheus_client.exposition import choose_encoder
except ImportError as error:
    raise ConfigurationError(
        "metrics for Prometheus need prometheus_client, which is not installed: pip install 'txpool[metrics]'"
    ) from error

_LIMITS = [*map(str, BOUNDS), "+Inf"]


class Collector(registry.Collector):
    """All metrics of this process, read at each scrape. Durations are measured from now on."""

    def __init__(self) -> None:
        arm()

    def collect(self) -> Iterable[core.Metric]:
        samples: dict[Family, list[Sample]] = {}
        for sample in collect():
            samples.setdefault(sample.family, []).append(sample)
        return [_metric(family, samples[family]) for family in FAMILIES if family in samples]


def text(accept: str = "") -> tuple[bytes, str]:
    """All metrics in the format that an Accept header asks for, and its content type."""
    of_ours = registry.CollectorRegistry()
    of_ours.register(Collector())
    encoder, content_type = choose_encoder(accept)
    return encoder(of_ours), content_type


def _metric(family: Family, samples: Iterable[Sample]) -> core.Metric:
    if family.kind is MetricKind.HISTOGRAM:
        histogram = core.HistogramMetricFamily(family.name, family.doc, labels=family.labels)
        for sample in samples:
            counts = accumulate(map(float, sample.value.counts))
            histogram.add_metric(sample.labels, list(zip(_LIMITS, counts, strict=True)), sample.value.sum)
        return histogram
    kind = core.CounterMetricFamily if family.kind is MetricKind.COUNTER else core.GaugeMetricFamily
    metric = kind(family.name, family.doc, labels=family.labels)
    for sample in samples:
        metric.add_metric(sample.labels, sample.value)
    return metric
