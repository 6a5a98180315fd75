"""What only the private parts of a consumer of kafka-python's have, as `requests.py`: headers that are no UTF-8."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch

from txpool.resources.kafka.records import HeaderName


def read_any_header(consumer: KafkaConsumer) -> None:
    """Let a consumer read headers whose names are no UTF-8: else it never goes on behind the first."""
    consumer._fetcher.PartitionRecords = _PartitionRecords


def knows_coordinator(consumer: KafkaConsumer) -> bool:
    """Whether it knows which broker has its group. Without that a poll receives nothing, and says nothing."""
    return consumer._coordinator.coordinator() is not None


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
