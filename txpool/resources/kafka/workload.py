"""What the conformance kit writes to a topic and reads there: a message is its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txpool.locks import Lock

if TYPE_CHECKING:
    from txpool.datasource.source import Source
    from txpool.resources.kafka.branch import KafkaWork
    from txpool.resources.kafka.manager import Kafka


class TopicWork:
    """Messages with the kit's keys: one partition for each, since a prepared one hides what follows in its own."""

    def __init__(self, manager: Kafka, source: Source) -> None:
        self._manager, self._source = manager, source
        self._topic: str = source.settings.topic or ""
        self._parts: dict[str, int] = {}
        self._reader: Any = None
        self._reading = Lock()

    def _part(self, key: str) -> int:
        return self._parts.setdefault(
            key, len(self._parts) % self._manager.requests_of(self._source).parts(self._topic)
        )

    def write(self, work: KafkaWork, key: str) -> None:
        """Send a message."""
        from txpool.resources.kafka.records import Record

        work.send(Record(self._topic, self._part(key), key.encode(), b"", ()))

    def visible(self, key: str) -> bool:
        """Whether a reader with isolation level read_committed sees the message."""
        from kafka import TopicPartition

        place = TopicPartition(self._topic, self._part(key))
        with self._reading:
            reader = self._reader = self._reader or self._manager.consumer(self._source.settings)
            reader.assign([place])
            reader.seek_to_beginning(place)
            end = reader.end_offsets([place])[place]
            while reader.position(place) < end:
                for records in reader.poll(timeout_ms=1000).values():
                    if any(each.key == key.encode() for each in records):
                        return True
        return False

    def close(self) -> None:
        """The messages stay: the topic is the user's, and is deleted with what is in it."""
        if self._reader is not None:
            self._reader.close()
