"""Messages: sessions that send and receive within transactions, and the loop of a consumer."""

from txpool.messages.consumer import Consumer, consumer
from txpool.messages.session import Message, Session, session

__all__ = ["Consumer", "Message", "Session", "consumer", "session"]
