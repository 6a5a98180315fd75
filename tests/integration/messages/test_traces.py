"""A message carries its place in a trace: it is sent within the transaction's span, and who receives it links to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import txpool
from tests.integration.outbox.conftest import Place
from txpool.messages import MessageSession, ReceivedMessage
from txpool.tracing import opentelemetry as otel

Queue = Callable[..., MessageSession]
pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.instrument(provider)
    yield exporter
    otel.uninstrument()


def of(spans: InMemorySpanExporter, gtrid: str) -> ReadableSpan:
    (found,) = (
        each
        for each in spans.get_finished_spans()
        if each.name == "txpool.transaction" and (each.attributes or {})["txpool.gtrid"] == gtrid
    )
    return found


def linked(span: ReadableSpan) -> set[int]:
    return {each.context.span_id for each in span.links}


def test_who_receives_links_to_who_has_sent(place: Place, queue: Queue, spans: InMemorySpanExporter) -> None:
    session = queue()
    with txpool.transaction() as sender:
        session.send("one")
        session.send("two", headers={"h": "x"})
    session.send("foreign", headers={"traceparent": "no such thing"})
    parent = of(spans, sender.gtrid).context
    assert parent is not None
    begin = f"00-{parent.trace_id:032x}-{parent.span_id:016x}-"
    with pytest.raises(KeyError), txpool.transaction() as receiver:
        found = session.receive(10)
        raise KeyError
    assert [each.headers["traceparent"].startswith(begin) for each in found] == [True, True, False]
    assert found[1].headers["h"] == "x"
    assert dict(found[2].headers) == {"traceparent": "no such thing"}
    assert linked(of(spans, receiver.gtrid)) == {parent.span_id}

    gtrids: list[str] = []

    @txpool.consumer(session)
    def work(messages: list[ReceivedMessage]) -> None:
        ambient = txpool.current()
        assert ambient is not None
        gtrids.append(ambient.gtrid)

    assert work.run(once=True) == 3
    assert [linked(of(spans, each)) for each in gtrids] == [{parent.span_id}, {parent.span_id}, set()]


def test_nothing_without_a_tracer(place: Place, queue: Queue) -> None:
    session = queue()
    session.send("one")
    with txpool.transaction():
        ((found),) = session.receive()
    assert dict(found.headers) == {}
