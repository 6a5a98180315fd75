"""The outbox: messages that a transaction sends, and a relay delivers; and once(), for those who receive them."""

from txpool.outbox.message import Message
from txpool.outbox.once import once
from txpool.outbox.outbox import Outbox, OutboxState, ParkedMessage
from txpool.outbox.relay import Relay

__all__ = ["Message", "Outbox", "OutboxState", "ParkedMessage", "Relay", "once"]
