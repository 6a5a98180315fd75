"""What the conformance kit writes to a queue and reads there: a message is its row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txpool.locks import Lock
from txpool.resources.messages.tables import Outgoing

if TYPE_CHECKING:
    from txpool.resources.jms.branch import JmsWork
    from txpool.resources.jms.driver import JmsDriver


class QueueWork:
    """Messages whose ids are the kit's keys."""

    def __init__(self, driver: JmsDriver, queue: str) -> None:
        self._driver, self._queue = driver, queue
        self._reading = Lock()

    def write(self, work: JmsWork, key: str) -> None:
        """Send a message."""
        raw = work.begun()
        raw.send(raw.queue(self._queue), raw.message(Outgoing(key, b"", None, {}, 0)))

    def visible(self, key: str) -> bool:
        """Whether the message can be received."""
        with self._reading, self._driver.lent() as raw:
            return next(raw.browse(raw.queue(self._queue), f"txpool_id = '{key}'"), None) is not None

    def close(self) -> None:
        """Take all that was sent: the queue is the kit's."""
        with self._driver.lent() as raw, raw.receiving(raw.queue(self._queue)) as consumer:
            while raw.receive(consumer, 0) is not None:
                pass
