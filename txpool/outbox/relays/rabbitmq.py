"""`outbox.deliver = rabbitmq`: persistent messages, and a publisher's confirm awaited for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pika
from pika import exceptions

from txpool.outbox.relays.broker import PATIENCE, BrokerDelivery, bytes_of, headers_of

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

    from txpool.outbox.message import Message

_TOO_LARGE = 406  # PRECONDITION_FAILED


class RabbitMQDelivery(BrokerDelivery):
    """Delivers to `outbox.exchange` with the routing key `outbox.to`; without an exchange, that is a queue's name.

    With an exchange and no `outbox.to`, a message's own key is its routing key.
    """

    broker, port = "RabbitMQ", 5672

    def _check(self) -> None:
        if not self._settings.outbox_exchange:
            super()._check()

    def _open(self) -> BlockingChannel:
        name = "guest" if self.user is None else self.user
        login = pika.PlainCredentials(name, self.password() or ("guest" if self.user is None else ""))
        context = self.tls_context()
        places = []
        for each in self.addresses:
            host, _, port = each.rpartition(":")
            places.append(
                pika.ConnectionParameters(
                    host=host,
                    port=int(port),
                    virtual_host=self._settings.outbox_vhost,
                    credentials=login,
                    ssl_options=None if context is None else pika.SSLOptions(context, host),
                    socket_timeout=PATIENCE / 2,
                    stack_timeout=PATIENCE / 2,
                    blocked_connection_timeout=PATIENCE,
                    heartbeat=int(PATIENCE),  # the broker's own may be none, and then a wait for it has no end
                )
            )
        channel: BlockingChannel = pika.BlockingConnection(places).channel()
        channel.confirm_delivery()
        return channel

    def _publish(self, connection: BlockingChannel, message: Message) -> None:
        exchange = self._settings.outbox_exchange or ""
        properties = pika.BasicProperties(
            delivery_mode=pika.DeliveryMode.Persistent, message_id=message.id, headers=headers_of(message)
        )
        # It is an error if no queue gets the message, or if the broker does not confirm it.
        connection.basic_publish(
            exchange, self.to or message.key or "", bytes_of(message), properties=properties, mandatory=True
        )

    def _close(self, connection: BlockingChannel) -> None:
        broker: BlockingConnection = connection.connection
        broker.close()

    def _is_of_key(self, error: Exception) -> bool:
        return not self.to and isinstance(error, exceptions.NackError)  # the queue of its key may be full

    def _refuses(self, error: Exception) -> bool:
        if isinstance(error, exceptions.UnroutableError):
            return not self.to  # else no message would be routed
        if isinstance(error, exceptions.ChannelClosedByBroker):
            return bool(error.reply_code == _TOO_LARGE)
        return isinstance(error, exceptions.BodyTooLongError | exceptions.ShortStringTooLong)
