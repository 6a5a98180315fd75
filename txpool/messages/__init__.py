"""Messages: sessions that send and receive within transactions, and the loop of a consumer."""

from txpool.messages.consumer import Consumer, consumer
from txpool.messages.session import MessageSession, ReceivedMessage, session

__all__ = ["Consumer", "MessageSession", "ReceivedMessage", "consumer", "session"]
