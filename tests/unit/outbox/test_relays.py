"""Which errors are the message's fault: one message must not hold up all others of its outbox for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from kafka import errors

import txpool
from txpool.config.settings import DataSourceSettings
from txpool.outbox import Message
from txpool.outbox.relays import delivery_to
from txpool.outbox.relays.broker import PATIENCE, BrokerDelivery, BrokerOutage


def _delivery(folder: Path, name: str) -> BrokerDelivery:
    file = folder / "o.properties"
    file.write_text("driver = sqlite3\nmode = local\nurl = sqlite:///o.db\noutbox.broker = b\noutbox.to = t\n")
    return delivery_to(name, DataSourceSettings.load(file))


def _kafka(folder: Path, publish: Callable[..., Any]) -> BrokerDelivery:
    deliver = _delivery(folder, "kafka")
    for name, method in (("_open", object), ("_publish", publish), ("_close", lambda _: None)):
        setattr(deliver, name, method)
    return deliver


@pytest.mark.parametrize("error", [errors.InvalidRecordError, errors.MessageSizeTooLargeError])
def test_what_kafka_refuses_is_no_outage(tmp_path: Path, error: type[Exception]) -> None:
    """As a message without a key, which a compacted topic does not take."""

    def publish(*_: object) -> None:
        raise error

    with pytest.raises(error):
        _kafka(tmp_path, publish)(Message("1", None, b"x", 1))

    def lost(*_: object) -> None:
        raise errors.KafkaTimeoutError

    with pytest.raises(BrokerOutage):
        _kafka(tmp_path, lost)(Message("1", None, b"x", 1))


@pytest.mark.parametrize(("message", "key"), [("1", "k" * 100_000), ("1\r\nNats-Rollup: all", None), ("1", "a\nb")])
def test_ids_and_keys_that_send_does_not_write_reach_no_broker(tmp_path: Path, message: str, key: str | None) -> None:
    """Who may write a row could have the broker close the connection, or find headers of his own there."""
    published = list[object]()
    with pytest.raises(txpool.DataError, match="does not write"):
        _kafka(tmp_path, lambda *given: published.append(given))(Message(message, key, b"x", 1))
    assert published == []


def test_rabbitmqs_heartbeat_is_the_relays_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may have none: then the confirmation of one that has stalled was awaited for ever."""
    opened = list[pika.ConnectionParameters]()

    def connection(places: list[pika.ConnectionParameters]) -> None:
        opened.extend(places)
        raise OSError

    monkeypatch.setattr(pika, "BlockingConnection", connection)
    with pytest.raises(BrokerOutage):
        _delivery(tmp_path, "rabbitmq")(Message("1", None, b"x", 1))
    assert [each.heartbeat for each in opened] == [PATIENCE]
