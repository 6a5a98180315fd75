"""What a consumer of Kafka's has received: buffers, messages, and whether there is more."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from txpool.errors import OperationalError, described
from txpool.messages.session import ReceivedMessage
from txpool.resources.messages.tables import ID_HEADER, take_id

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition


#: After so many seconds of polls without the group's coordinator, or while a partition stands still, the client is
#: closed: a lookup, or a fetch, may never end.
_LONGEST_LOOKUP = 30.0
_LONGEST_STANDSTILL = 60.0
#: The number of no partition: the row of the topic's id, beside the positions of its partitions.
OF_TOPIC: Final = -1

logger = logging.getLogger("txpool.messages")


class ReceivedPlace(NamedTuple):
    """Where a message is, and the position at which the work with it begins."""

    part: int
    offset: int
    begun: int


class ReceivedBuffer:
    """What was polled of one partition, and is not known to be committed: all records from an offset on."""

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self.records: deque[Any] = deque()
        self.not_before = 0.0  #: When its first message may be tried again, by the monotonic clock.


@dataclass
class ConsumedTopic:
    """The topic of a session, which may be deleted, and created again with other messages at the same offsets."""

    session: str
    topic: str
    group: str
    #: The datasource with the positions.
    positions: str
    #: What the consumer has begun with; None until there is such a topic.
    id: str | None = None
    #: For how many seconds polls have waited for the group's coordinator; since the last look at the partitions.
    looked_up: float = 0.0
    polled: float = 0.0
    #: Where partitions were, at the last look, that have more.
    behind: dict[TopicPartition, int | None] = field(default_factory=dict)

    def require_progress(self, consumer: KafkaConsumer, seconds: float) -> None:
        """OperationalError if polls, of which the last took so many seconds, go on to receive nothing of what is there.

        kafka-python says nothing then.
        """
        from kafka.errors import KafkaError

        from txpool.resources.kafka.reader import is_member, knows_coordinator

        self.looked_up = 0.0 if knows_coordinator(consumer) else self.looked_up + seconds
        if self.looked_up > _LONGEST_LOOKUP:
            raise OperationalError(
                f"{self.session}: no broker has told for {_LONGEST_LOOKUP:.0f} s who coordinates the group "
                f"{self.group}, and nothing was received. The next try connects anew"
            )
        paused = consumer.paused()
        self.behind = {place: at for place, at in self.behind.items() if place not in paused}
        if not is_member(consumer):
            self.polled, self.behind = 0.0, {}
        elif (polled := self.polled + seconds) <= _LONGEST_STANDSTILL:
            self.polled = polled
        else:
            places = [*consumer.assignment() - paused]
            try:
                ends = consumer.end_offsets(places) if places else {}
                found = {place: consumer.position(place, timeout_ms=1000) for place in places}
            except KafkaError as error:
                raise OperationalError(
                    f"{self.session}: no broker tells how far {self.topic} is received, and nothing was: "
                    f"{described(error)}. The next try connects anew"
                ) from error
            for place, at in found.items():
                if place in self.behind and self.behind[place] == at:
                    raise OperationalError(
                        f"{self.session}: partition {place.partition} of {self.topic} ends at {ends[place]}, and has "
                        f"stood still at {at} for {_LONGEST_STANDSTILL:.0f} s of polls. Nothing was received: its "
                        "broker, or the network, has stalled, or a message is longer than "
                        "driver.receive_message_max_bytes. The next try connects anew"
                    )
            self.polled, self.behind = 0.0, {place: at for place, at in found.items() if (at or 0) < ends[place]}

    def require_id(self, found: str | None, kept: Callable[[int], int]) -> None:
        """OperationalError if the topic has another id by now, or had one when its positions were begun.

        `kept` returns the number that stands beside the positions, which is the given one if there was none yet.
        """
        if self.id is None and found is not None:
            number = int.from_bytes(sha256(found.encode()).digest()[:8]) >> 1  # as a column of integers keeps it
            if kept(number) != number:
                raise self._created_again(f"its id is {found}, and was another when that group began")
            self.id = found
        if found != self.id:
            raise self._created_again(f"its id was {self.id}, and is {found} now")

    def _created_again(self, why: str) -> OperationalError:
        return OperationalError(
            f"{self.session}: the topic {self.topic} was deleted and created again, or is gone, since {self.group} has "
            f"consumed it: {why}. Nothing was received: the positions would leave out what is there now. Stop its "
            f"consumers, delete the rows of {self.group} and {self.topic} in {self.positions} to receive all of that, "
            "and start them again"
        )

    def require_reached(self, part: int, position: int, end: int) -> None:
        """OperationalError if the partition does not reach the position: it is another topic of that name, say."""
        if not 0 <= position <= end:
            raise OperationalError(
                f"{self.session}: the position of {self.group} in partition {part} of {self.topic} is {position}, and "
                f"the partition ends at {end}: the topic was deleted and created again, maybe, or has lost messages. "
                "Nothing was received: the position would leave out what is there now. Delete its row in "
                f"{self.positions} to receive all of that"
            )

    def tell_deleted(self, consumer: KafkaConsumer, place: TopicPartition, position: int) -> None:
        """Log if what is there begins behind the position. One more may be what has ended a transaction."""
        begin = consumer.beginning_offsets([place])[place]
        if begin > position + 1:
            logger.warning(
                "%s: %s has not received all of partition %d of %s: its position is %d, and what is before %d was "
                "deleted, by the topic's retention maybe. It goes on there",
                *(self.session, self.group, place.partition, self.topic, position, begin),
            )


def message_of(topic: str, record: Any, begun: int, tries: int = 0) -> ReceivedMessage:
    """The message of a record of kafka-python's."""
    headers = {str(name): (value or b"").decode("utf-8", "surrogateescape") for name, value in record.headers}
    made = take_id(headers, ID_HEADER, f"{topic}-{record.partition}-{record.offset}")
    key = None if record.key is None else record.key.decode("utf-8", "surrogateescape")
    place = ReceivedPlace(record.partition, record.offset, begun)
    return ReceivedMessage(record.value, key, headers, made, record.timestamp / 1000, place, tries)


def has_read_all(consumer: KafkaConsumer, buffers: Mapping[int, ReceivedBuffer]) -> bool:
    """Whether it is a member of its group, and has no more to read: what is in the buffers is to be tried later."""
    from txpool.resources.kafka.reader import is_member

    if not is_member(consumer):
        return False
    assigned = consumer.assignment()
    if any(each.partition not in buffers for each in assigned):
        return False
    read = [each for each in assigned if not buffers[each.partition].records]
    ends = consumer.end_offsets(read) if read else {}
    return all((consumer.position(each, timeout_ms=1000) or 0) >= end for each, end in ends.items())
