"""The session of `driver = kafka`: messages in a branch of Kafka's, and positions as rows in a datasource.

The position of a group in a partition is a row. A transaction moves it from where its work began, and only if it is
still there: so of two consumers with the same messages one commits. Kafka's group only says who receives what. If
nothing is sent to Kafka, Kafka takes no part in the commit.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from txpool.errors import (
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    TransactionRolledBack,
    chain,
    described,
)
from txpool.messages.kafka_received import OF_TOPIC, ConsumedTopic, ReceivedBuffer, has_read_all, message_of
from txpool.messages.session import MessageSession, ReceivedMessage, ambient_transaction, apart, database_of
from txpool.resources.kafka.manager import MANAGER, parking_topic
from txpool.resources.messages.tables import ID_HEADER, Outgoing, TopicPart, Tried, readable, tables_of
from txpool.tm.completion.status import Status
from txpool.tm.demarcation.block import transaction
from txpool.tm.rules.enlistment import require_log
from txpool.tm.subordinate import Subordinate

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

    from txpool.datasource import DataSource, Source
    from txpool.resources.kafka.records import Topics
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool.messages")

#: The header with the error for which a message is parked in a topic.
_ERROR = "txpool-error"
#: For how many seconds a receive polls at least, once its consumer has joined the group.
_LEAST = 0.1
#: For how many seconds it waits for that.
_LONGEST_JOIN = 10.0


class KafkaSession(MessageSession):
    """Sends to and receives from a topic."""

    _key_lengths = (0, inf)  # of other programs, too, whose messages are sent on
    _own_header = ID_HEADER

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        settings = source.settings
        MANAGER.require_client(settings)
        self._topic, self._group = settings.topic or "", settings.group
        self._parking_topic = parking_topic(settings)
        self._topics: Topics | None = None
        self._consumer: tuple[int, KafkaConsumer] | None = None
        self._buffers: dict[int, ReceivedBuffer] = {}
        self._polling = False  #: A poll has begun, and an interrupt may have kept its records from the buffers.
        self._ended = False  #: Its source is closed.
        source.when_closed.callback(self._close, ended=True)

    @property
    def datasource(self) -> DataSource:
        return database_of(self.source, self.source.settings.offsets_datasource, "offsets.datasource")

    @property
    def prepares_in(self) -> Source:
        return self.source

    # -- sending ------------------------------------------------------------------------------------------------

    def _send(self, sent: Outgoing) -> None:
        if sent.delay:
            raise NotSupportedError(f"{self.name}: Kafka has no delay. Nothing was sent")
        self._send_to(self._topic, sent)

    def _send_to(self, topic: str, sent: Outgoing) -> None:
        from txpool.resources.kafka.records import Topics

        ambient = ambient_transaction()
        require_log(ambient.gtrid, self.name, logged=ambient.log is not None or isinstance(ambient, Subordinate))
        if self._topics is None:
            self._topics = Topics(lambda each: MANAGER.requests_of(self.source).parts(each))
        record = self._topics.record(topic, sent)
        part = ambient.enlist_datasource(self.source)
        with part.lock:  # PREPARE would leave out what another thread adds meanwhile
            part.pooled.send(record)

    # -- receiving ----------------------------------------------------------------------------------------------

    def _receive(self, ambient: Transaction, most: int, timeout: float) -> list[ReceivedMessage]:
        from txpool.resources.kafka.reader import is_member

        began, ready, left = time.monotonic(), False, 0.0
        with self._alone():
            begun = self._begun(ambient)
            while True:
                taken: list[ReceivedMessage] = []
                for number, buffer in [*self._buffers.items()]:
                    if len(taken) < most and buffer.not_before <= time.monotonic():
                        taken += self._take(begun, number, buffer, most - len(taken))
                if taken or (ready and left <= _LEAST):
                    return taken
                ambient.require_active()
                waited = time.monotonic() - began
                ready = bool(self._buffers) or is_member(self._kafka()) or waited > _LONGEST_JOIN
                left = max(_LEAST, timeout - waited)
                self._poll(min(1.0, left))

    def _begun(self, ambient: Transaction) -> dict[int, tuple[int, int]]:
        """By partition: where this transaction's work begins, and where it ends."""
        if (begun := ambient.values.get(self)) is None:
            begun = ambient.values[self] = {}
            ambient.before_completion(lambda: self._advance(begun), interposed=True)
            ambient.after_completion(lambda status: self._drop(begun, status))
        return begun

    def _drop(self, begun: dict[int, tuple[int, int]], status: Status) -> None:
        if status is Status.COMMITTED:
            with suppress(ProgrammingError), self._alone():  # another thread that receives sees it by itself
                for number, (_, after) in begun.items():
                    if (buffer := self._buffers.get(number)) is not None:
                        self._trim(number, buffer, after)

    def _take(
        self, begun: dict[int, tuple[int, int]], number: int, buffer: ReceivedBuffer, most: int
    ) -> list[ReceivedMessage]:
        if not buffer.records:
            return []
        found = begun.get(number)
        if found is None:
            position = self._position(number)[0]
            if not self._trim(number, buffer, position):
                return []
            found = begun[number] = position, position
        first, after = found
        taken = [each for each in buffer.records if each.offset >= after][:most]
        if taken:
            begun[number] = first, taken[-1].offset + 1
        return [message_of(self._topic, each, first) for each in taken]

    def _trim(self, number: int, buffer: ReceivedBuffer, position: int) -> bool:
        """Drop what is before the position; False if the buffer does not reach there: then it is polled from there."""
        while buffer.records and buffer.records[0].offset < position:
            buffer.records.popleft()
        if buffer.begin <= position and (buffer.records or position <= buffer.end):
            buffer.begin = position
            return True
        self._seek(number, position)
        return False

    def _advance(self, begun: dict[int, tuple[int, int]]) -> None:
        with self._cursor() as cursor:
            for number, (first, after) in sorted(begun.items()):
                if after > first and not tables_of(self.datasource).advance(cursor, self._part(number), first, after):
                    raise OperationalError(
                        f"{self.name}: another consumer of {self._group} has moved the position in partition {number} "
                        f"of {self._topic} away from {first}: this one was displaced. What it has done rolls back"
                    )

    # -- for the loop of a consumer -----------------------------------------------------------------------------

    def wait(self, timeout: float) -> bool:
        with self._alone():
            if not self._has_some():
                self._poll(max(_LEAST, timeout))
            return self._has_some()

    def _has_some(self) -> bool:
        now = time.monotonic()
        return any(each.records and each.not_before <= now for each in self._buffers.values())

    def has_read_all(self) -> bool:
        with self._alone():
            return has_read_all(self._kafka(), self._buffers)

    def take_one(self) -> ReceivedMessage | None:
        with self._alone():
            for number, buffer in [*self._buffers.items()]:
                if not buffer.records or buffer.not_before > time.monotonic():
                    continue
                with self._cursor() as cursor:
                    held = tables_of(self.datasource).position(cursor, self._part(number), hold=True)
                if held is None:
                    self._position(number)  # another consumer has it, unless it is gone
                elif self._trim(number, buffer, held[0]) and buffer.records:
                    message = message_of(self._topic, buffer.records[0], *held)
                    if message.tries < self.parking_after:
                        self._begun(ambient_transaction())[number] = held[0], message.place.offset + 1
                    return message
        return None

    def _tried(self, message: ReceivedMessage) -> Tried:
        part, _, position = message.place
        return Tried(*self._part(part), position, message.id)

    def failed(self, message: ReceivedMessage, error: str, delay: float, *, is_open: bool) -> None:
        tables, (part, _, position) = tables_of(self.datasource), message.place
        with transaction(), self._cursor() as cursor:
            tables.failed(cursor, self._part(part), position)
            if is_open:
                with tables.within(self.datasource, cursor) as tries:
                    tables.take_back(tries, self._tried(message))
        if (buffer := self._buffers.get(part)) is not None:
            buffer.not_before = time.monotonic() + delay

    def park(self, message: ReceivedMessage, error: str) -> str:
        from txpool.resources.kafka.records import REFUSED

        if self._parking_topic is not None:
            try:
                return self._park_in(self._parking_topic, message, error)
            except TransactionRolledBack as failure:
                if not any(isinstance(each, REFUSED) for each in chain(failure, contexts=False)):
                    raise
                logger.warning("%s: %s", self.name, described(failure))
        return self._park_in(None, message, error)

    def _park_in(self, topic: str | None, message: ReceivedMessage, error: str) -> str:
        """Park it in the topic, or in the table. Returns as `park`."""
        part, offset, _ = message.place
        tables, headers, key = tables_of(self.datasource), dict(message.headers), message.key
        queue = self.parking if self._parking_topic is None else f"{self.name}-parked"
        if key is not None and readable(key) != key:  # which not every database could keep
            key, headers["txpool-key"] = readable(key), key
        with transaction(), self._cursor() as cursor:
            position = self._position(part)[0]
            if position > offset or not tables.advance(cursor, self._part(part), position, offset + 1):
                return ""  # another consumer has done it
            with tables.within(self.datasource, cursor) as tries:
                tables.forget_tries(tries, self._tried(message))
            if topic is None:
                tables.insert(cursor, queue, Outgoing(message.id, message.body, key, headers, 0), error)
            else:  # in the same transaction as the position
                headers = {**message.headers, _ERROR: readable(error)}
                self._send_to(topic, Outgoing(message.id, message.body, message.key, headers, 0))
        return queue if topic is None else f"topic:{topic}"

    def parked(self) -> tuple[int, float | None]:
        if self._parking_topic is not None:
            raise NotSupportedError(
                f"{self.name} parks in the topic {self._parking_topic}: who receives there knows how many are left"
            )
        return super().parked()

    # -- Kafka's own consumer -----------------------------------------------------------------------------------

    def _poll(self, timeout: float) -> None:
        from txpool.resources.kafka.reader import poll

        consumer = self._kafka()
        if self._polling:  # an interrupt may have lost what the last one has returned, or kept it in part
            self._buffers.clear()
        self._polling = True
        self._pause(consumer)
        began = time.monotonic()
        try:
            polled = poll(consumer, timeout)
            self._consumed.require_progress(consumer, time.monotonic() - began)
        except Exception:  # its thread may have ended, and then each poll fails
            self._close()
            raise
        assigned = {place.partition: place for place in consumer.assignment()}
        if polled or not assigned or assigned.keys() - self._buffers.keys():
            found = MANAGER.requests_of(self.source).topic_id(self._topic)
            if not assigned and found is None:  # else others have all its partitions
                raise OperationalError(f"{self.name}: there is no topic {self._topic}, and nothing was received")
            self._consumed.require_id(found, lambda number: self._position_or_start(OF_TOPIC, number))
        for number in self._buffers.keys() - assigned.keys():
            del self._buffers[number]
        for number in assigned.keys() - self._buffers.keys():  # it begins where the row says
            begin = self._position_or_start(number, assigned[number])
            self._require_reached(assigned[number], begin)
            self._seek(number, begin)
            polled.pop(assigned[number], None)
        for place, records in polled.items():
            filled = self._buffers.get(place.partition)
            if filled is not None:
                if records[0].offset > filled.end:  # what ends transactions is there, or what is there was deleted
                    self._consumed.tell_deleted(consumer, place, filled.end)
                filled.records += [each for each in records if each.offset >= filled.end]
                position = consumer.position(place, timeout_ms=1000)
                filled.end = max(filled.end, position or 0, records[-1].offset + 1)
                if position is not None and position < filled.end:  # a rebalance has set it back to the topic's begin
                    self._require_reached(place, filled.end)
                    consumer.seek(place, filled.end)
        self._polling = False

    def _require_reached(self, place: TopicPartition, position: int) -> None:
        self._consumed.require_reached(place.partition, position, self._kafka().end_offsets([place])[place])

    def _pause(self, consumer: KafkaConsumer) -> None:
        """Poll nothing of the partitions that wait for a message to be tried again: the rest would fill the memory."""
        for place in consumer.assignment():
            buffer = self._buffers.get(place.partition)
            waits = buffer is not None and buffer.not_before > time.monotonic()
            (consumer.pause if waits else consumer.resume)(place)

    def _seek(self, number: int, position: int) -> None:
        from kafka import TopicPartition

        place = TopicPartition(self._topic, number)
        consumer = self._kafka()
        if place in consumer.assignment():
            consumer.seek(place, position)
        self._buffers[number] = ReceivedBuffer(position)  # behind the seek: an interrupt between them leaves no gap

    def _kafka(self) -> KafkaConsumer:
        if self._consumer is None or self._consumer[0] != os.getpid():
            from txpool.resources.kafka.reader import mend

            settings = self.source.settings
            if self._ended:  # nobody would close another consumer, which keeps its partitions from the group's others
                raise InterfaceError(
                    f"{self.name}: this session is closed, and nothing was received: txpool.session() makes another"
                )
            if self._group is None:
                raise settings.properties.error("group", "is missing: write group = shop")
            made = MANAGER.consumer(settings, self._topic, group_id=self._group, auto_offset_reset="earliest")
            try:
                mend(made, self._topic)
            except BaseException:  # an interrupt: its thread would stay
                made.close(autocommit=False)
                raise
            self._consumed = ConsumedTopic(self.name, self._topic, self._group, self.datasource.name)
            self._consumer = os.getpid(), made
            self._buffers = {}
        return self._consumer[1]

    def _close(self, *, ended: bool = False) -> None:
        self._ended |= ended
        found, self._consumer = self._consumer, None
        self._buffers = {}
        if found is not None and found[0] == os.getpid():
            with suppress(Exception):  # if its thread has ended
                found[1].close(autocommit=False)

    # -- positions ----------------------------------------------------------------------------------------------

    def _part(self, number: int) -> TopicPart:
        return TopicPart(self._group or "", self._topic, number)

    def _found(self, number: int) -> tuple[int, int] | None:
        """The position, and how many tries of the message there have failed; None if there is none yet."""
        with self._cursor() as cursor:
            return tables_of(self.datasource).position(cursor, self._part(number))

    def _position(self, number: int) -> tuple[int, int]:
        found = self._found(number)
        if found is None:
            raise OperationalError(
                f"{self.name}: the row of the position of {self._group} in partition {number} of {self._topic} is "
                "gone: somebody has deleted it. Nothing was received; insert it again"
            )
        return found

    def _position_or_start(self, number: int, first: TopicPartition | int) -> int:
        """The position; if there is none yet, it is `first`, or the first that the partition has."""

        def start() -> None:
            with self._cursor() as cursor:
                tables_of(self.datasource).start(cursor, self._part(number), begin)

        found = apart(lambda: self._found(number))
        if found is None:
            begin = first if isinstance(first, int) else self._kafka().beginning_offsets([first])[first]
            with suppress(IntegrityError):  # if another consumer was faster
                apart(start, read_only=False)
            found = apart(lambda: self._position(number))
        return found[0]
