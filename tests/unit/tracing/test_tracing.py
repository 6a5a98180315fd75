"""A transaction's spans are one trace, and tell how it ended and no more."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode, get_current_span

import txpool
from tests.support.repository import ROOT
from tests.support.waiting import until
from tests.unit.tracing.prepared import Prepared, make_record
from txpool import tracing
from txpool.errors import TransactionRolledBack
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.metrics import instruments
from txpool.resources.base import Resolution
from txpool.tm.background import statistics
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.phase import Phase
from txpool.tm.transaction import Transaction
from txpool.tracing import opentelemetry as otel
from txpool.xid import make_gtrid

if TYPE_CHECKING:
    from tests.conftest import PythonWithout

SECRET = "hunter2"


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider()


@pytest.fixture
def spans(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.instrument(provider)
    return exporter


@pytest.fixture
def datasource(tmp_path: Path) -> Iterator[txpool.DataSource]:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with txpool.DataSource(name="a", driver="sqlite3", mode="local", url=url) as found:
        with closing(found.connect()) as connection:
            connection.execute("create table t (x text unique)")
        yield found


def work(datasource: txpool.DataSource, value: str = "one") -> None:
    with closing(datasource.connect()) as connection:
        connection.execute("insert into t values (?)", [value])


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    finished = spans.get_finished_spans()
    found = {span.name: span for span in finished}
    assert len(found) == len(finished), [span.name for span in finished]
    return found


def only(spans: InMemorySpanExporter, name: str) -> Any:
    (found,) = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def test_a_transaction_its_datasource_and_its_phases(
    spans: InMemorySpanExporter, datasource: txpool.DataSource
) -> None:
    with txpool.transaction(note="invoice 42") as tx:
        work(datasource)
    found = by_name(spans)
    whole = found.pop("txpool.transaction")
    assert {*found} == {"txpool.datasource", "txpool.prepare", "txpool.one_phase"}
    for span in found.values():
        assert span.parent == whole.get_span_context()
        assert whole.start_time <= span.start_time <= span.end_time <= whole.end_time  # type: ignore[operator]
        assert span.status.status_code is StatusCode.UNSET
    assert whole.parent is None
    assert whole.status.status_code is StatusCode.UNSET
    assert whole.attributes == {
        "txpool.gtrid": tx.gtrid,
        "txpool.node": tx.gtrid.split(":")[1],
        "txpool.outcome": "committed",
        "txpool.datasources": ("a",),
        "txpool.note": "invoice 42",
    }
    assert found["txpool.datasource"].attributes == {
        "txpool.datasource": "a",
        "txpool.mode": "local",
        "db.system.name": "sqlite",
        "txpool.answer": "committed",
    }


@pytest.mark.parametrize(("scheme", "system"), [("kafka", "kafka"), ("tcp", "activemq")])
def test_a_broker_is_a_messaging_system(spans: InMemorySpanExporter, scheme: str, system: str) -> None:
    with txpool.transaction() as tx:
        tx.may_be_empty = True
        assert tx.trace is not None
        tx.trace.enlisting(SimpleNamespace(name="in", mode="xa", url=f"{scheme}://broker:1"))
    attributes = by_name(spans)["txpool.datasource"].attributes
    assert attributes is not None
    assert attributes["messaging.system"] == system
    assert "db.system.name" not in attributes


def test_it_is_within_what_is_current_and_what_is_traced_in_its_block_is_within_it(
    spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracer = provider.get_tracer("user")
    with tracer.start_as_current_span("request") as request:
        with txpool.transaction():
            tracer.start_span("inside").end()
            with txpool.transaction():
                tracer.start_span("nested").end()
        tracer.start_span("behind").end()
    whole = only(spans, "txpool.transaction").get_span_context()
    parents = {span.name: span.parent for span in spans.get_finished_spans()}
    assert parents["txpool.transaction"] == parents["behind"] == request.get_span_context()
    assert parents["inside"] == parents["nested"] == whole


def test_one_that_was_begun_by_hand_has_the_same_spans(
    spans: InMemorySpanExporter, datasource: txpool.DataSource
) -> None:
    txpool.begin().note = "by hand"
    work(datasource)
    txpool.commit()
    whole = only(spans, "txpool.transaction")
    assert whole.attributes["txpool.note"] == "by hand"
    assert only(spans, "txpool.datasource").parent == whole.get_span_context()


def test_to_roll_back_as_asked_is_no_error(spans: InMemorySpanExporter, datasource: txpool.DataSource) -> None:
    txpool.begin()
    work(datasource)
    txpool.rollback()
    whole = only(spans, "txpool.transaction")
    assert whole.attributes["txpool.outcome"] == "rolled_back"
    assert whole.status.status_code is StatusCode.UNSET
    assert only(spans, "txpool.rollback").status.status_code is StatusCode.UNSET
    assert only(spans, "txpool.datasource").attributes["txpool.answer"] == "rolled back"


def test_an_error_is_told_by_its_class_and_nothing_by_its_words(
    spans: InMemorySpanExporter, datasource: txpool.DataSource
) -> None:
    with txpool.transaction():
        work(datasource, SECRET)
    with pytest.raises(txpool.IntegrityError), txpool.transaction():
        work(datasource, SECRET)
    with pytest.raises(ValueError, match=SECRET), txpool.transaction():
        work(datasource, "another")
        raise ValueError(SECRET)
    for span in spans.get_finished_spans():
        assert SECRET not in span.to_json()
        assert "insert" not in span.to_json()
    _, first, second = (span for span in spans.get_finished_spans() if span.name == "txpool.transaction")
    for span, kind in ((first, "IntegrityError"), (second, "ValueError")):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert kind in str(span.attributes["error.type"])
        assert span.attributes["txpool.outcome"] == "rolled_back"


def test_a_doomed_one_that_was_to_commit_is_an_error(spans: InMemorySpanExporter) -> None:
    with pytest.raises(TransactionRolledBack), txpool.transaction(), suppress(LookupError), txpool.transaction():
        raise LookupError
    whole = only(spans, "txpool.transaction")
    assert whole.status.status_code is StatusCode.ERROR
    assert whole.attributes["error.type"] == "LookupError"


class Unsure(MemoryLog):
    """Its first answers are lost."""

    answers = iter(("record", "abort"))

    def record(self, gtrid: str, branches: Any) -> None:
        super().record(gtrid, branches)
        next(self.answers)
        raise OSError(SECRET)

    def abort(self, gtrid: str) -> Resolution:
        if next(self.answers, None):
            raise OSError(SECRET)
        return super().abort(gtrid)


def test_one_that_is_given_up_is_an_error_and_waits_for_nobody_s_lock(
    spans: InMemorySpanExporter, datasource: txpool.DataSource
) -> None:
    """The collector may strike while the very thread holds its span's lock, as to set an attribute does."""
    generators = []

    class Collecting(list[str]):
        def __iter__(self) -> Iterator[str]:
            generators.clear()
            return iter(())

    def generate() -> Iterator[None]:
        with txpool.transaction():
            work(datasource)
            yield

    def give_up() -> None:
        generators.append(generate())
        next(generators[0])
        get_current_span().set_attribute("rows", Collecting(["one"]))

    thread = threading.Thread(target=give_up, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert not generators
    until(lambda: "txpool.transaction" in [each.name for each in spans.get_finished_spans()])
    whole = only(spans, "txpool.transaction")
    assert whole.attributes["txpool.outcome"] == "rolled_back"
    assert (whole.status.status_code, whole.status.description) == (StatusCode.ERROR, "TransactionRolledBack")


def test_one_in_doubt_is_an_error_and_what_settles_it_is_in_its_trace(spans: InMemorySpanExporter) -> None:
    log = Unsure(MemoryDisk("etl-1"), node="etl-1")
    left: list[Coordinator] = []
    tx = Transaction(make_gtrid("etl-1", log.incarnation, 1), log, lambda _, coordinator: left.append(coordinator))
    assert tracing.tracer is not None
    tx.trace = tracing.tracer.transaction(tx.gtrid)
    branch: Any = Prepared()
    branch.record = make_record(tx.gtrid)
    tx.adopt([branch], late_branches=False)
    with pytest.raises(txpool.TransactionInDoubt):
        tx.commit()
    whole = only(spans, "txpool.transaction")
    assert (whole.attributes["txpool.outcome"], whole.status.status_code) == ("in_doubt", StatusCode.ERROR)
    assert only(spans, "txpool.decide").status.status_code is StatusCode.ERROR
    assert only(spans, "txpool.establish").status.status_code is StatusCode.ERROR
    spans.clear()
    tx.resolved(left[0].retry())
    found = by_name(spans)
    assert {"txpool.establish", "txpool.commit", "txpool.settled"} <= {*found}
    assert all(span.parent == whole.get_span_context() for span in found.values())
    assert only(spans, "txpool.settled").attributes == {"txpool.outcome": "committed"}


def test_phases_are_measured_beside_that(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Phase] = []
    monkeypatch.setattr(instruments, "armed", True)
    monkeypatch.setattr(statistics.Stopwatch, "__call__", lambda _, phase: heard.append(phase))
    with txpool.transaction():
        pass
    assert heard == [Phase.PREPARE, Phase.ONE_PHASE, Phase.ENDED]
    assert {"txpool.prepare", "txpool.one_phase"} < {*by_name(spans)}


def test_what_is_not_sampled_is_not_exported_and_has_its_place(datasource: txpool.DataSource) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.instrument(provider)
    with txpool.transaction() as tx:
        work(datasource)
        assert tx.trace is not None
        assert not int(tx.trace.traceparent[-2:], 16) & 1
    assert not exporter.get_finished_spans()


class Broken(SpanProcessor):
    """As somebody has written it in a hurry."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise LookupError("on start")

    def on_end(self, span: Any) -> None:
        raise LookupError("on end")


def test_what_a_provider_fails_with_changes_nothing(
    datasource: txpool.DataSource, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Broken())
    otel.instrument(provider)
    with txpool.transaction() as tx:
        work(datasource)
    assert tx.status is txpool.Status.COMMITTED
    assert "a span could not be made" in caplog.text
    monkeyed = TracerProvider()
    monkeyed.add_span_processor(type("Late", (Broken,), {"on_start": lambda *_, **__: None})())
    otel.instrument(monkeyed)
    with txpool.transaction() as tx:
        work(datasource, "two")
    assert tx.status is txpool.Status.COMMITTED
    with closing(datasource.connect()) as connection:
        assert connection.execute("select count(*) from t").fetchall() == [(2,)]


def test_without_instrument_there_are_none(datasource: txpool.DataSource) -> None:
    with txpool.transaction() as tx:
        work(datasource)
        assert tx.trace is None


def test_threads_that_work_in_it_are_in_its_trace(spans: InMemorySpanExporter, datasource: txpool.DataSource) -> None:
    tx = txpool.begin()
    txpool.suspend()

    def elsewhere() -> None:
        txpool.resume(tx)
        work(datasource)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    txpool.resume(tx)
    txpool.commit()
    assert only(spans, "txpool.datasource").parent == only(spans, "txpool.transaction").get_span_context()


def test_without_the_extra_an_error_names_it(python_without: PythonWithout) -> None:
    source = "import txpool.tracing.opentelemetry"
    assert "pip install 'txpool[metrics]'" in python_without("opentelemetry", source)
    source = "import txpool\nwith txpool.transaction(note='n'): pass\nprint(open('/nowhere'))"
    assert "No such file" in python_without("opentelemetry_", source).splitlines()[-1]


def test_opentelemetry_instrument_finds_it(spans: InMemorySpanExporter, provider: TracerProvider) -> None:
    otel.uninstrument()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["opentelemetry_instrumentor"]["txpool"]
    assert EntryPoint("txpool", named, "opentelemetry_instrumentor").load() is otel.Instrumentor
    otel.Instrumentor().instrument(tracer_provider=provider, skip_dep_check=True)
    with txpool.transaction():
        pass
    assert only(spans, "txpool.transaction").attributes["txpool.outcome"] == "committed"
    otel.Instrumentor().uninstrument()
    assert tracing.tracer is None
