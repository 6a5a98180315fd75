"""A message of an outbox carries its place in a trace: its delivery links to it, and a broker gets it as a header."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import txpool
from tests.integration.messages.test_traces import linked, of, spans
from tests.integration.outbox.conftest import Place
from txpool.outbox import Message
from txpool.outbox.relays.broker import headers_of

__all__ = ["spans"]


def test_its_delivery_links_to_who_has_sent(place: Place, spans: InMemorySpanExporter) -> None:
    with txpool.transaction() as sender:
        place.outbox.send("one", key="k")
    parent = of(spans, sender.gtrid).context
    assert parent is not None
    found: list[tuple[Message, str]] = []

    def deliver(message: Message) -> None:
        ambient = txpool.current()
        assert ambient is not None
        found.append((message, ambient.gtrid))

    assert place.outbox.relay(deliver).deliver_all() == 1
    ((message, gtrid),) = found
    begin = f"00-{parent.trace_id:032x}-{parent.span_id:016x}-"
    assert message.traceparent is not None
    assert message.traceparent.startswith(begin)
    assert headers_of(message) == {"txpool-id": message.id, "txpool-key": "k", "traceparent": message.traceparent}
    assert linked(of(spans, gtrid)) == {parent.span_id}


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_what_somebody_has_planted_there_is_no_header(place: Place) -> None:
    place.send("one")
    place.sql("orders", "update txpool_outbox set traceparent = '00-' || char(13, 10) || 'Nats-Msg-Id: 1'")
    found: list[Message] = []
    assert place.outbox.relay(found.append).deliver_all() == 1
    assert headers_of(found[0]) == {"txpool-id": found[0].id}


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_nothing_without_a_tracer(place: Place) -> None:
    place.send("one")
    found: list[Message] = []
    assert place.outbox.relay(found.append).deliver_all() == 1
    assert found[0].traceparent is None
    assert headers_of(found[0]) == {"txpool-id": found[0].id}
