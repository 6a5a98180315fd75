"""What only the private parts of a consumer of kafka-python's have, as `requests.py` has those of its clients."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import CorruptRecordError, KafkaError
from kafka.future import Future
from kafka.record.default_records import DefaultRecordBatch
from kafka.structs import MemberState

from txpool.resources.kafka.records import HeaderName

#: For how many seconds a topic's partitions are asked for.
_LONGEST_LOOK = 10.0


def mend(consumer: KafkaConsumer, topic: str) -> None:
    """Let a consumer go on behind a header whose name is no UTF-8, take each join's answer, and know its topic."""
    consumer._fetcher.PartitionRecords = _PartitionRecords
    consumer._coordinator.__class__ = _Coordinator
    _learn(consumer, topic)


def _learn(consumer: KafkaConsumer, topic: str) -> None:
    """Let it know the topic's partitions before it joins its group: else it may get none, as if others had them.

    If it leads the group it joins again then; but one with a `group_instance_id` does not, once it is started again.
    """
    manager, cluster = consumer._manager, consumer._cluster
    deadline = time.monotonic() + _LONGEST_LOOK
    with suppress(KafkaError):  # who polls is told why
        while cluster.partitions_for_topic(topic) is None and time.monotonic() < deadline:
            manager.run(manager.wait_for, cluster.request_update(), _LONGEST_LOOK * 1000)


def knows_coordinator(consumer: KafkaConsumer) -> bool:
    """Whether it knows which broker has its group. Without that a poll receives nothing, and says nothing."""
    return consumer._coordinator.coordinator() is not None


def is_member(consumer: KafkaConsumer) -> bool:
    """Whether it is a member of its group, and has been told its partitions."""
    return bool(consumer.group_metadata().state == MemberState.STABLE)


def poll(consumer: KafkaConsumer, seconds: float) -> dict[TopicPartition, list[Any]]:
    """What it receives within so many seconds.

    What it has kept of a partition that was paused, it takes up again only if it has nothing else in hand; and what it
    has returned all of counts as something: then that partition would stand still for ever.
    """
    fetcher = consumer._fetcher
    fetcher._next_partition_records = fetcher._next_partition_records or None
    return consumer.poll(timeout_ms=int(max(0.0, seconds) * 1000))  # type: ignore[no-any-return]


class _Coordinator(ConsumerCoordinator):  # type: ignore[misc]
    """kafka-python drops the answer of a join that no poll waits for, and joins again: for ever, if polls are short.

    It does not even join again if that member leads the group, and joins since partitions were added.
    """

    _join_task: Any

    def need_rejoin(self) -> bool:
        return bool(self.rejoining or super().need_rejoin())

    async def join_group_async(self, timeout_ms: float | None = None) -> Any:
        joined = self._join_task
        if joined is not None and joined.succeeded():
            self._join_task = Future()
            self._manager.call_soon(self._join_task.success, joined.value)
        return await super().join_group_async(timeout_ms)


class _PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    def _unpack_records(self, place: Any, records: Any, *deserializers: Any) -> Any:
        return super()._unpack_records(place, _Batches(records), *deserializers)


class _Batches:
    def __init__(self, records: Any) -> None:
        self._records = records

    def next_batch(self) -> Any:
        found = self._records.next_batch()
        if type(found) is DefaultRecordBatch:  # else it is of the old format, which has no headers
            found.__class__ = _Batch
        return found


class _Batch(DefaultRecordBatch):  # type: ignore[misc]
    __slots__ = ()

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except CorruptRecordError as error:
            if not isinstance(error.__context__, UnicodeDecodeError):
                raise
        self._buffer = _Bytes(self._buffer)  # type: ignore[misc, has-type]
        return super().__next__()


class _Bytes(bytearray):
    """Bytes of which each slice can be decoded."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _Bytes(found) if isinstance(at, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return HeaderName(super().decode(encoding, "surrogateescape"))
