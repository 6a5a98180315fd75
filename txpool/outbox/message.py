"""A message, as it is delivered."""

from __future__ import annotations

from dataclasses import dataclass

from txpool.resources.outbox import Row
from txpool.tm.commit.annotations import traceparent_in


@dataclass(frozen=True, slots=True)
class Message:
    """A message of an outbox."""

    #: The same in each delivery of it, and no other message's: what `once()` needs.
    id: str
    #: Messages of one key are delivered in the order in which they were sent; None for one without an order.
    key: str | None
    payload: bytes | str
    #: Which delivery of it this is, from 1.
    attempt: int
    #: Its place in the trace of the transaction that has sent it, in W3C's form; None if nothing was traced.
    traceparent: str | None = None

    @classmethod
    def of(cls, row: Row, attempt: int) -> Message:
        """Of a row of the table."""
        payload = row.payload.decode() if row.is_text else row.payload
        return cls(row.id, row.key, payload, attempt, traceparent_in(row.traceparent or "") or None)
