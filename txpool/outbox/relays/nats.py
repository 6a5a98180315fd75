"""`outbox.deliver = nats`: a stream of JetStream, whose acknowledgement of each message is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

import nats
from nats.js import errors as js
from nats.js.api import Header

from txpool.errors import DataError, OperationalError
from txpool.outbox.relays.broker import PATIENCE, BrokerDelivery, bytes_of, headers_of

if TYPE_CHECKING:
    from nats.aio.client import Client

    from txpool.outbox.message import Message

_REFUSED = 400
#: What is around a message's headers.
_AROUND = b"NATS/1.0\r\n\r\n"


class _NatsConnection(NamedTuple):
    """A client, and the event loop in which it runs: between messages nothing does."""

    client: Client
    runner: asyncio.Runner
    #: Set once the connection is lost, or the server has said of a right that it lacks: its callers would wait.
    lost: asyncio.Future[str]


class NatsDelivery(BrokerDelivery):
    """Delivers to the subject `outbox.to`, with the message's id as `Nats-Msg-Id`."""

    broker, port = "NATS", 4222

    def _open(self) -> _NatsConnection:
        # 0 attempts would be without an end.
        options: dict[str, Any] = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0.1}
        if self.tls:
            options["tls"] = self.tls_context()
        if self.user is not None:
            options |= {"user": self.user, "password": self.password() or ""}
        runner = asyncio.Runner()
        lost = runner.get_loop().create_future()

        async def note(error: Exception | None = None) -> None:
            """The client also tells of errors that its calls raise."""
            if not lost.done() and (error is None or "permissions violation" in str(error).lower()):
                lost.set_result("the connection is lost" if error is None else str(error))

        try:
            servers = [f"nats://{each}" for each in self.addresses]
            options |= {"error_cb": note, "closed_cb": note, "connect_timeout": PATIENCE / 2}
            made = runner.run(nats.connect(servers=servers, **options))
        except BaseException:
            runner.close()
            raise
        return _NatsConnection(made, runner, lost)

    def _publish(self, connection: _NatsConnection, message: Message) -> None:
        headers = headers_of(message) | {Header.MSG_ID.value: message.id}
        if message.key is not None and message.key != message.key.strip():
            raise DataError(f"message {message.id}: NATS would cut the spaces off its key: it was not delivered")
        payload = bytes_of(message)
        size = (
            len(payload) + len(_AROUND) + sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())
        )
        if size > connection.client.max_payload:  # its client counts no headers, and the server ends the connection
            raise nats.errors.MaxPayloadError
        sending = connection.client.jetstream(timeout=PATIENCE).publish(self.to, payload, headers=headers)
        connection.runner.run(_answered(sending, connection.lost))

    def _close(self, connection: _NatsConnection) -> None:
        try:
            connection.runner.run(connection.client.close())
        finally:
            connection.runner.close()

    def _refuses(self, error: Exception) -> bool:
        refused = isinstance(error, js.APIError) and error.code == _REFUSED
        return refused or isinstance(error, nats.errors.MaxPayloadError | DataError)


async def _answered(sending: Coroutine[Any, Any, object], lost: asyncio.Future[str]) -> None:
    answer = asyncio.ensure_future(sending)
    try:
        await asyncio.wait((answer, lost), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise OperationalError(lost.result())
        await answer
    finally:
        answer.cancel()
