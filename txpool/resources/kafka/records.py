"""What is sent to Kafka: messages, the partitions that they go to, and the batches in which they travel."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kafka import errors
from kafka.partitioner.default import murmur2
from kafka.record.memory_records import MemoryRecordsBuilder

from txpool.errors import ProgrammingError, described
from txpool.resources.messages.tables import ID_HEADER, Outgoing

#: What a broker answers if a topic takes no batch that is so long.
TOO_LONG = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
#: What a broker answers if it does not take a message itself: it is too long, or has no key in a compacted topic.
REFUSED = (*TOO_LONG, errors.InvalidTimestampError, errors.InvalidRecordError)
#: How long one batch of messages may be, in bytes: a little less than a stock topic takes; if a topic takes less, as
#: long as those of Java's client; at last each message by itself.
BATCHES = (900_000, 16_384, 1)
#: For how many seconds the number of a topic's partitions is taken to be the same.
_PARTS_FOR = 60.0


#: A topic, and the number of its partition.
Place = tuple[str, int]


class Producer(NamedTuple):
    """Who has begun a transaction: what ends it needs nothing else."""

    transactional_id: str
    id: int
    epoch: int


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ProgrammingError(
            f"a key or header is no text of UTF-8, and nothing was sent: {described(error)}"
        ) from error


class HeaderName(str):
    """A header's name, which kafka-python encodes: bytes that are no UTF-8 stand in it as in a message's values."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> HeaderName:
        """The name. ProgrammingError if it could not be encoded."""
        _bytes_of(text)
        return cls(text)

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return super().encode(encoding, "surrogateescape")


class Record(NamedTuple):
    """A message as it is sent."""

    topic: str
    part: int
    key: bytes | None
    body: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Topics:
    """Makes messages into records of one cluster's topics. `count` tells how many partitions a topic has."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._counts: dict[str, tuple[int, float]] = {}
        self._rounds = itertools.count()

    def record(self, topic: str, sent: Outgoing) -> Record:
        """The record of a message; a key's partition is the one that Java's client chooses, too."""
        key = None if sent.key is None else _bytes_of(sent.key)
        chosen = next(self._rounds) if key is None else murmur2(key) & 0x7FFFFFFF
        headers = [(HeaderName.of(name), _bytes_of(value)) for name, value in sent.headers.items()]
        headers.append((HeaderName(ID_HEADER), sent.id.encode()))
        return Record(topic, chosen % self._parts(topic), key, sent.body, headers)

    def _parts(self, topic: str) -> int:
        count, at = self._counts.get(topic, (0, 0.0))
        if not count or time.monotonic() - at > _PARTS_FOR:
            count = self._count(topic)
            self._counts[topic] = count, time.monotonic()
        return count


def _batches_of(producer: Producer, records: Iterable[Record], size: int) -> dict[Place, list[bytes]]:
    """The records as batches of so many bytes, by topic and partition. A longer record is a batch by itself.

    They have sequence numbers, by which a broker knows them again.
    """
    found: dict[Place, list[bytes]] = defaultdict(list)
    building: dict[Place, tuple[Any, int]] = {}
    now = int(time.time() * 1000)
    for topic, part, key, body, headers in records:
        place = topic, part
        builder, sequence = building.get(place, (None, 0))
        if builder is None or builder.append(now, key, body, headers) is None:
            if builder is not None:
                found[place].append(_closed(builder))
            builder = MemoryRecordsBuilder(
                2,
                0,
                size,
                transactional=True,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                base_sequence=sequence,
            )
            builder.append(now, key, body, headers)
        building[place] = builder, sequence + 1
    for place, (builder, _) in building.items():
        found[place].append(_closed(builder))
    return dict(found)


def rounds_of(producer: Producer, records: Iterable[Record], size: int, most: int) -> list[dict[Place, bytes]]:
    """The records as the batches that are sent together: of so many bytes, and at most one for each partition.

    MessageSizeTooLargeError if a record is longer: for such a request the broker would end the connection.
    """
    for topic, part, key, body, headers in records:
        length = len(key or b"") + len(body or b"") + sum(len(name) + len(value) for name, value in headers)
        if length > most:
            raise errors.MessageSizeTooLargeError(f"topic {topic}, partition {part}: a request may have {most:,} bytes")
    rounds = list[dict[Place, bytes]]()
    batches = _batches_of(producer, records, size)
    while batches:
        together, length = dict[Place, bytes](), 0
        for place, waiting in batches.items():
            if not together or length + len(waiting[0]) <= most:
                together[place], length = waiting[0], length + len(waiting[0])
        rounds.append(together)
        left = ((place, waiting[place in together :]) for place, waiting in batches.items())
        batches = {place: waiting for place, waiting in left if waiting}
    return rounds


def is_one(batch: bytes) -> bool:
    """Whether a batch has one record: its format, the second, counts them in these four bytes."""
    return int.from_bytes(batch[57:61]) == 1


def _closed(builder: Any) -> bytes:
    builder.close()
    return bytes(builder.buffer())
