"""`outbox.deliver = kafka`: an idempotent producer, and each record confirmed by every replica in sync."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer, errors

from txpool.errors import OperationalError
from txpool.outbox.relays.broker import KEY, PATIENCE, BrokerDelivery, bytes_of, headers_of
from txpool.resources.kafka.records import REFUSED
from txpool.resources.kafka.requests import KafkaRequests

if TYPE_CHECKING:
    from txpool.outbox.message import Message


class KafkaDelivery(BrokerDelivery):
    """Delivers into the topic `outbox.to`. A key's partition is the one that Java's client chooses."""

    broker, port = "Kafka", 9092

    def _open(self) -> KafkaProducer:
        milliseconds = int(PATIENCE * 1000)
        options: dict[str, Any] = {"bootstrap_timeout_ms": milliseconds // 3}
        if self.tls:
            options |= {"security_protocol": "SSL", "ssl_context": self.tls_context()}
        if self.user is not None:
            options |= {
                "security_protocol": "SASL_SSL" if self.tls else "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": self.user,
                "sasl_plain_password": self.password(),
            }
        with closing(KafkaRequests(",".join(self.addresses), options)) as requests, suppress(OperationalError):
            requests.longest()  # without the right to ask, it is a stock broker
        return KafkaProducer(
            bootstrap_servers=self.addresses,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_request_size=int(0.99 * requests.most),  # of what is longer, the topic decides
            max_block_ms=milliseconds,
            request_timeout_ms=milliseconds // 2,
            delivery_timeout_ms=milliseconds,
            **options,
        )

    def _publish(self, connection: KafkaProducer, message: Message) -> None:
        key = None if message.key is None else message.key.encode()
        headers = [(name, value.encode()) for name, value in headers_of(message).items() if name != KEY]
        sent = connection.send(self.to, bytes_of(message), key=key, headers=headers)
        sent.get(timeout=PATIENCE + 5)

    def _close(self, connection: KafkaProducer) -> None:
        with suppress(errors.KafkaTimeoutError):
            connection.close(timeout=0)

    def _refuses(self, error: Exception) -> bool:
        return isinstance(error, REFUSED)
