"""Metrics for OpenTelemetry: instruments over our numbers, read whenever its reader collects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from txpool.errors import ConfigurationError
from txpool.metrics.catalogue import ATTRIBUTES, FAMILIES, Family, MetricKind
from txpool.metrics.instruments import BOUNDS, Labels, Listener, arm
from txpool.metrics.registry import HISTOGRAMS, collect

try:
    from opentelemetry import metrics as api
except ImportError as error:
    raise ConfigurationError(
        "metrics for OpenTelemetry need opentelemetry-api, which is not installed: pip install 'txpool[metrics]'"
    ) from error

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation


def bridge(provider: MeterProvider | None = None) -> None:
    """Add every metric of this process to a meter provider (None: the global one). Call it once, when that is set up.

    Counters have counted since the process began; durations are recorded from now on.
    """
    arm()
    meter = api.get_meter("txpool", meter_provider=provider)
    creators = {
        MetricKind.COUNTER: meter.create_observable_counter,
        MetricKind.GAUGE: meter.create_observable_gauge,
        MetricKind.SUM: meter.create_observable_up_down_counter,
    }
    for family in FAMILIES:
        if family.kind is MetricKind.HISTOGRAM:
            HISTOGRAMS[family].listeners.append(_recorder(meter, family))
        else:
            creators[family.kind](family.bridged, [_observer(family)], family.unit, family.doc)


def _recorder(meter: Meter, family: Family) -> Listener:
    histogram = meter.create_histogram(
        family.bridged, family.unit, family.doc, explicit_bucket_boundaries_advisory=BOUNDS
    )
    return lambda labels, seconds: histogram.record(seconds, _attributes(family, labels))


def _observer(family: Family) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [
        api.Observation(sample.value, _attributes(family, sample.labels))
        for sample in collect()
        if sample.family is family
    ]


def _attributes(family: Family, labels: Labels) -> dict[str, str]:
    return {ATTRIBUTES[name]: value for name, value in zip(family.labels, labels, strict=True)}
