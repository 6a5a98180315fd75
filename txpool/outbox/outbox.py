"""Outbox: the messages of one datasource, which commit with the data of the transaction that sends them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txpool.datasource import find
from txpool.errors import NotSupportedError, ProgrammingError
from txpool.outbox.relay import Relay
from txpool.resources.outbox import outbox_table
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from txpool.idempotency.once import RecordIn
    from txpool.outbox.message import Message

_MAX_KEY = 200
#: How many parked messages are listed.
LISTED = 1000


@dataclass(frozen=True, slots=True)
class OutboxState:
    """What is in an outbox."""

    datasource: str
    #: How many messages are neither delivered nor parked.
    waiting: int
    #: The seconds since the first of those was sent; None if there is none.
    oldest: float | None
    parked: int


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """A message that is not delivered any more, until `retry`."""

    id: str
    key: str | None
    #: How often its delivery has begun.
    attempts: int
    #: The error of the last delivery; None if that has not ended.
    error: str | None


class Outbox:
    """The outbox of a datasource: a file, a name or a DataSource. Thread-safe.

    `create()` makes its table, once. `txpool outbox run` is the relay that delivers. Errors: NotSupportedError if the
    database has no outbox; ConfigurationError as `connect()`.
    """

    def __init__(self, datasource: RecordIn) -> None:
        self._source = find(datasource)
        part = self._source.resource_manager.outbox
        if part is None:
            raise NotSupportedError(
                f"datasource {self._source.name} ({self._source.resource_manager.database}) has no outbox: use one in "
                "another database of the transaction"
            )
        self._table = outbox_table(part)

    def create(self) -> None:
        """Create the table if it does not exist, outside any transaction; an earlier version's gets its new columns.

        Errors: the database's own."""
        self._table.create(self._source)

    def send(self, payload: bytes | str, *, key: str | None = None) -> str:
        """Send a message within the ambient transaction; returns its id.

        It is there once the transaction has committed, and never if that rolls back. Messages of one key are delivered
        in the order of their transactions, one after another: whoever sends under a key waits until other transactions
        that have sent under it have ended. Errors: ProgrammingError outside a transaction, if there is no table, or for
        a payload or key that is none; the driver's own.
        """
        ambient = current()
        if ambient is None:
            raise ProgrammingError(
                f"send() to the outbox of {self._source.name} outside a transaction: nothing was sent. Send it within "
                "`with txpool.transaction():`, beside the data that it belongs to"
            )
        _check(payload, key)
        message, data = str(uuid.uuid4()), payload.encode() if isinstance(payload, str) else bytes(payload)
        traceparent = None if ambient.trace is None else ambient.trace.traceparent or None
        try:
            self._table.send(self._source, message, key, data, traceparent, is_text=isinstance(payload, str))
        except BaseException as error:
            if not isinstance(error, Exception):  # the message may have been sent
                ambient.set_rollback_only(error)
            raise
        return message

    def relay(self, deliver: Callable[[Message], object]) -> Relay:
        """A relay of this process, which calls the function with each message.

        Errors: ProgrammingError for a coroutine function, or a generator: the messages would be lost.
        """
        return Relay(self._source, self._table, deliver)

    def state(self) -> OutboxState:
        """What is in it now."""
        with transaction(read_only=True), self._table.opened(self._source) as cursor:
            total, parked, age = self._table.state(cursor)
        return OutboxState(self._source.name, total - parked, age, parked)

    def parked(self) -> list[ParkedMessage]:
        """The first thousand messages that are parked, in the order in which they were sent."""
        with transaction(read_only=True), self._table.opened(self._source) as cursor:
            return [ParkedMessage(*row) for row in self._table.parked(cursor, LISTED)]

    def retry(self, message: str | None = None) -> int:
        """Let the parked message with this id, or all of them, be delivered again; returns how many there were."""
        with transaction(), self._table.opened(self._source) as cursor:
            return self._table.retry(cursor, message)


def _check(payload: object, key: object) -> None:
    if not isinstance(payload, bytes | str):
        raise ProgrammingError(
            f"a message is bytes or text, and not {type(payload).__name__}, and nothing was sent: json.dumps() makes "
            "text of most else"
        )
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= _MAX_KEY and key.isprintable()):
        raise ProgrammingError(
            f"a message's key is text of 1 to {_MAX_KEY} printable characters, or None, and nothing was sent"
        )
