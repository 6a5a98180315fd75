"""What is counted is what happened, in every thread; and what is read is what was counted."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

import txpool
from tests.support.forking import in_child
from txpool.errors import PoolTimeout
from txpool.metrics import (
    FAMILIES,
    HISTOGRAMS,
    Counter,
    Histogram,
    MetricKind,
    catalogue,
    collect,
    instruments,
    prometheus,
)
from txpool.metrics import opentelemetry as otel

if TYPE_CHECKING:
    from tests.conftest import PythonWithout


@pytest.fixture
def armed() -> Iterator[None]:
    """Durations are measured, and nobody listens to them afterwards."""
    instruments.arm()
    yield
    instruments.armed = False
    for histogram in HISTOGRAMS.values():
        histogram.listeners.clear()


@pytest.fixture
def datasource(tmp_path: Path) -> Iterator[txpool.DataSource]:
    """Its name is no other test's: a closed pool's totals count until it is collected."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    name = f"metrics-{secrets.token_hex(4)}"
    with txpool.DataSource(name=name, driver="sqlite3", mode="local", url=url, pool_max_size=1) as found:
        yield found


def read(family: catalogue.Family, *labels: str) -> float:
    return sum(each.value for each in collect() if each.family is family and each.labels == labels)


def observations(family: catalogue.Family, *labels: str) -> int:
    found = (each.value for each in collect() if each.family is family and each.labels == labels)
    return sum(sum(distribution.counts) for distribution in found)


# -- the instruments ----------------------------------------------------------------------------------------------


def test_a_counter_loses_nothing_between_threads_and_readings() -> None:
    counter, start = Counter(), threading.Barrier(5)
    read: list[int] = []

    def count() -> None:
        start.wait()
        for _ in range(20_000):
            counter.one()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        read.append(counter.value())
    for thread in threads:
        thread.join()
    assert counter.value() == counter.value() == 80_000
    assert read == sorted(read)
    counter.restart()
    counter.one()
    assert counter.value() == 1


def test_a_histogram_has_its_observations_in_the_right_buckets() -> None:
    histogram, heard = Histogram(), []
    histogram.listeners.append(lambda labels, seconds: heard.append((labels, seconds)))
    for seconds in (0.0, 0.0001, 0.00011, 300.0, 301.0):
        histogram.observe(seconds, "a")
    histogram.observe(1.0, "b")
    found = dict(histogram.read())
    counts = found["a",].counts
    assert (counts[0], counts[1], counts[-2], counts[-1], sum(counts)) == (2, 1, 1, 1, 5)
    assert found["a",].sum == pytest.approx(601.00021)
    assert sum(found["b",].counts) == 1
    assert heard[-1] == (("b",), 1.0)


def test_a_listener_that_fails_harms_neither_the_others_nor_whoever_measures() -> None:
    histogram, heard = Histogram(), []
    histogram.listeners += [lambda labels, seconds: 1 / 0, lambda labels, seconds: heard.append(seconds)]
    histogram.observe(1.0, "a")
    assert heard == [1.0]


def test_every_name_is_of_its_kind_and_no_two_are_the_same() -> None:
    for names in ([each.name for each in FAMILIES], [each.bridged for each in FAMILIES]):
        assert len(set(names)) == len(names)
    for each in FAMILIES:
        assert each.name.endswith("_total") == (each.kind is MetricKind.COUNTER), each.name
        assert set(each.labels) <= catalogue.ATTRIBUTES.keys()
        assert each.doc.endswith(".")


# -- what counts --------------------------------------------------------------------------------------------------


def test_transactions_are_counted_by_their_ends(datasource: txpool.DataSource, armed: None) -> None:
    ends = ("committed", "rolled_back")
    before = [read(catalogue.BEGUN), *(read(catalogue.ENDED, end) for end in ends)]
    phases = observations(catalogue.PHASE_SECONDS, "one_phase")
    for fails in (False, False, True):
        with suppress(KeyError), txpool.transaction():
            datasource.connect().execute("create table if not exists t (id int)")
            if fails:
                raise KeyError
    after = [read(catalogue.BEGUN), *(read(catalogue.ENDED, end) for end in ends)]
    assert [now - then for now, then in zip(after, before, strict=True)] == [3, 2, 1]
    assert observations(catalogue.PHASE_SECONDS, "one_phase") == phases + 2


def test_durations_are_measured_only_once_somebody_reads(datasource: txpool.DataSource) -> None:
    before = observations(catalogue.USE_SECONDS, datasource.name)
    datasource.connect().close()
    assert observations(catalogue.USE_SECONDS, datasource.name) == before
    prometheus.Collector()
    try:
        datasource.connect().close()
        assert observations(catalogue.USE_SECONDS, datasource.name) == before + 1
    finally:
        instruments.armed = False


def test_a_pool_tells_who_holds_waits_and_waits_in_vain(datasource: txpool.DataSource, armed: None) -> None:
    waits = observations(catalogue.WAIT_SECONDS, datasource.name)
    with closing(datasource.connect()):
        assert (
            read(catalogue.CONNECTIONS, datasource.name, "used"),
            read(catalogue.CONNECTIONS, datasource.name, "idle"),
        ) == (1, 0)
        with pytest.raises(PoolTimeout):
            datasource.connect(timeout=0.01)
    assert (
        read(catalogue.CONNECTIONS, datasource.name, "used"),
        read(catalogue.CONNECTIONS, datasource.name, "idle"),
    ) == (0, 1)
    assert (
        read(catalogue.TIMEOUTS, datasource.name),
        read(catalogue.CREATED, datasource.name),
        read(catalogue.TAKES, datasource.name),
    ) == (1, 1, 1)
    assert read(catalogue.CONNECTIONS_MAX, datasource.name) == 1
    assert observations(catalogue.WAIT_SECONDS, datasource.name) == waits + 1


def test_a_closed_pool_opens_and_keeps_no_connection(datasource: txpool.DataSource) -> None:
    datasource.connect().close()
    datasource.close()
    limits = (catalogue.CONNECTIONS_MAX, catalogue.IDLE_MAX, catalogue.IDLE_MIN)
    assert [read(family, datasource.name) for family in limits] == [0, 0, 0]
    assert read(catalogue.CREATED, datasource.name) == 1


def test_a_pool_that_nobody_has_used_is_not_shown(datasource: txpool.DataSource) -> None:
    assert not [
        each for each in collect() if each.labels[:1] == (datasource.name,) and each.family is catalogue.CONNECTIONS_MAX
    ]


def test_a_forked_child_counts_from_nothing(armed: None) -> None:
    with txpool.transaction():
        pass
    HISTOGRAMS[catalogue.SCAN_SECONDS].observe(1.0)

    def child() -> None:
        assert read(catalogue.BEGUN) == read(catalogue.ENDED, "committed") == 0
        assert observations(catalogue.SCAN_SECONDS) == 0
        with txpool.transaction():
            pass
        assert read(catalogue.BEGUN) == read(catalogue.ENDED, "committed") == 1

    in_child(child)
    assert read(catalogue.BEGUN) > 0


# -- who reads ----------------------------------------------------------------------------------------------------


def test_prometheus_reads_all_that_there_is(datasource: txpool.DataSource, armed: None) -> None:
    with txpool.transaction() as tx:
        datasource.connect().execute("select 1")
    text, content_type = prometheus.text()
    assert content_type.startswith("text/plain")
    assert tx.gtrid not in text.decode()
    found = {metric.name: metric for metric in text_string_to_metric_families(text.decode())}
    names = {each.name.removesuffix("_total") for each in FAMILIES}
    assert found.keys() <= names
    uses = {
        sample.name: sample
        for sample in found["txpool_connection_use_seconds"].samples
        if datasource.name in sample.labels.values()
    }
    assert uses["txpool_connection_use_seconds_count"].value == observations(catalogue.USE_SECONDS, datasource.name)
    assert "+Inf" in {sample.labels.get("le") for sample in found["txpool_connection_use_seconds"].samples}
    ended = {sample.labels["outcome"]: sample.value for sample in found["txpool_transactions"].samples}
    assert ended["committed"] == read(catalogue.ENDED, "committed")
    open_metrics, content_type = prometheus.text("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert open_metrics.endswith(b"# EOF\n")


def test_opentelemetry_reads_all_that_there_is(datasource: txpool.DataSource, armed: None) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    try:
        otel.bridge(provider)
        with txpool.transaction():
            datasource.connect().execute("select 1")
        data = reader.get_metrics_data()
        assert data is not None
        (scope,) = data.resource_metrics[0].scope_metrics
        found = {metric.name: metric for metric in scope.metrics}
    finally:
        provider.shutdown()
    assert scope.scope.name == "txpool"
    assert found.keys() <= {each.bridged for each in FAMILIES}
    counts = {
        (
            point.attributes["db.client.connection.pool.name"],
            point.attributes["db.client.connection.state"],
        ): point.value
        for point in found["db.client.connection.count"].data.data_points
    }
    assert (counts[datasource.name, "idle"], counts[datasource.name, "used"]) == (1, 0)
    (use,) = found["db.client.connection.use_time"].data.data_points
    assert (use.count, tuple(use.explicit_bounds), found["db.client.connection.use_time"].unit) == (
        1,
        instruments.BOUNDS,
        "s",
    )
    ended = {p.attributes["txpool.outcome"]: p.value for p in found["txpool.transaction.ended"].data.data_points}
    assert ended["committed"] == read(catalogue.ENDED, "committed")


@pytest.mark.parametrize(
    ("package", "module"), [("prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry")]
)
def test_without_the_extra_an_error_names_it(package: str, module: str, python_without: PythonWithout) -> None:
    assert "pip install 'txpool[metrics]'" in python_without(package, f"from txpool.metrics import {module}")
