"""What the deliveries to all brokers share: one connection, an error's meaning, and a second try.

A delivery returns once the broker has confirmed the message. Without that it raises, and the message stays. Whether the
broker has it then is not known: it may get it again, with the same id.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import DataError, OperationalError, described

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.outbox.message import Message

#: The headers with a message's id, key and place in a trace, as sessions of txpool's have them.
ID: Final = "txpool-id"
KEY: Final = "txpool-key"
TRACEPARENT: Final = "traceparent"
#: For how many seconds an answer is awaited.
PATIENCE: Final = 30.0
#: The longest id and key that `send()` writes.
_LONGEST: Final = 200


class BrokerOutage(OperationalError):
    """The broker has not confirmed a message, and not because of the message. It is delivered again."""

    #: It goes for messages of all keys.
    of_all = True


class BrokerDelivery(ABC):
    """Called with a message, it delivers that, and returns once the broker has confirmed it. Used by one thread."""

    #: The broker's name, and the port that it usually listens on.
    broker: str
    port: int

    def __init__(self, settings: DataSourceSettings) -> None:
        self._settings = settings
        self.to = settings.outbox_to or ""
        self.user = settings.outbox_user
        self.tls = settings.outbox_tls
        if not settings.outbox_broker:
            raise settings.properties.error("outbox.broker", f"is missing: write outbox.broker = broker:{self.port}")
        self._check()
        self._connection: Any = None

    def __call__(self, message: Message) -> None:
        """Deliver it. BrokerOutage if the broker does not answer; the client's own errors if the message is refused.

        DataError if its id or key is none of txpool's: a broker could close the connection for it, as in an outage.
        """
        _require_sent(message)
        while True:
            is_new = self._connection is None
            try:
                if is_new:
                    self._connection = self._open()
                self._publish(self._connection, message)
                return
            except BaseException as error:
                self.close()  # an answer that is still to come would be taken for the next message's
                if not isinstance(error, Exception) or self._refuses(error):
                    raise
                if is_new:
                    outage = BrokerOutage(
                        f"{self.broker} at {self._settings.outbox_broker} has not confirmed message {message.id}, "
                        f"which stays in the outbox: {described(error)}"
                    )
                    outage.of_all = not self._is_of_key(error)
                    raise outage from error
                # The broker may have closed a connection that was idle: what it has, it knows by its id.

    def close(self) -> None:
        """Close the connection; the next message opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                self._close(connection)

    @property
    def addresses(self) -> list[str]:
        """The brokers, each with its port."""
        words = [each.strip() for each in str(self._settings.outbox_broker).split(",")]
        return [each if each.rpartition(":")[2].isdecimal() else f"{each}:{self.port}" for each in words]

    def password(self) -> str | None:
        """The password, revealed: it is never kept."""
        secret = self._settings.outbox_password
        return None if secret is None else secret.reveal()

    def tls_context(self) -> ssl.SSLContext | None:
        """What checks the broker's certificate; None without TLS."""
        return ssl.create_default_context() if self.tls else None

    def _check(self) -> None:
        """ConfigurationError for keys that are none of the broker's."""
        if not self.to:
            raise self._settings.properties.error("outbox.to", "is missing: write outbox.to = orders")

    @abstractmethod
    def _open(self) -> Any:
        """A connection."""

    @abstractmethod
    def _publish(self, connection: Any, message: Message) -> None:
        """Send a message, and await its confirmation."""

    @abstractmethod
    def _close(self, connection: Any) -> None:
        """Close it at once: nothing that waits in the client is sent any more."""

    def _is_of_key(self, error: Exception) -> bool:
        """Whether an outage may be that of one message's key alone."""
        return False

    @abstractmethod
    def _refuses(self, error: Exception) -> bool:
        """Whether the message is the reason: the broker answers, and does not take it."""


def _require_sent(message: Message) -> None:
    """DataError unless the id and the key are such as `send()` writes: whoever may write the table can write others."""
    for text in (message.id, message.key or ""):
        if len(text) > _LONGEST or not text.isprintable():
            raise DataError(
                "a message of the outbox has an id or a key that send() does not write: it was not delivered"
            )


def bytes_of(message: Message) -> bytes:
    """The payload as it is sent: text as UTF-8."""
    return message.payload.encode() if isinstance(message.payload, str) else message.payload


def headers_of(message: Message) -> dict[str, str]:
    """The headers of a message: those that it has."""
    found = {ID: message.id, KEY: message.key, TRACEPARENT: message.traceparent}
    return {name: value for name, value in found.items() if value is not None}
