"""`outbox.deliver = jms`: persistent messages to a queue or topic of Artemis, each answered before the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from txpool.outbox.relays.broker import ID, PATIENCE, BrokerDelivery, bytes_of, headers_of
from txpool.resources.jdbc.jvm import jvm
from txpool.resources.jms.driver import connect_to
from txpool.resources.messages.tables import Outgoing

if TYPE_CHECKING:
    from txpool.outbox.message import Message
    from txpool.resources.jms.connection import JmsConnection

#: The broker drops a message with an id that it remembers, by this property.
_DUPLICATE: Final = "_AMQ_DUPL_ID"
_TOPIC: Final = "topic:"


class _JmsTarget(NamedTuple):
    raw: JmsConnection
    destination: Any


class JmsDelivery(BrokerDelivery):
    """Delivers to the queue `outbox.to`, or to a topic. Its headers are named as Java's names are: `txpool_key`."""

    broker, port = "JMS", 61616

    def _check(self) -> None:
        super()._check()
        if not self._settings.jdbc_classpath:
            raise self._settings.properties.error(
                "jdbc.classpath", "is missing: name the jars of Artemis's JMS client there"
            )

    def _open(self) -> _JmsTarget:
        settings = self._settings
        classes = jvm.started(settings.jdbc_classpath, jvm.split_options(settings.jvm_options or ""))
        tls = "?sslEnabled=true" if self.tls else ""
        url = f"({','.join(f'tcp://{each}{tls}' for each in self.addresses)})"
        milliseconds = int(PATIENCE * 1000)
        options: dict[str, Any] = {"callTimeout": milliseconds, "connectionTTL": 2 * milliseconds}
        options |= {"blockOnDurableSend": True, "user": self.user, "password": self.password()}
        raw = connect_to(settings.name, classes, url, options, branches=False)
        try:
            name = self.to.removeprefix(_TOPIC)
            return _JmsTarget(raw, raw.queue(name, sends=True) if name == self.to else raw.topic(name))
        except BaseException:
            raw.drop()
            raise

    def _publish(self, connection: _JmsTarget, message: Message) -> None:
        headers = {name.replace("-", "_"): value for name, value in headers_of(message).items() if name != ID}
        sent = Outgoing(message.id, bytes_of(message), None, headers | {_DUPLICATE: message.id}, 0)
        connection.raw.send(connection.destination, connection.raw.message(sent))

    def _close(self, connection: _JmsTarget) -> None:
        connection.raw.drop()

    def _refuses(self, error: Exception) -> bool:
        return False  # it takes bytes of any length, and what else is in a message are txpool's own texts
