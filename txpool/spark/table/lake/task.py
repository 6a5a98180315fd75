"""What a task of a write_table() into a lake's table does: it writes the files of one partition, and describes them.

Only the driver publishes: the files of attempts that it does not take are removed after its transaction. Each file of
an Iceberg table is listed in the attempt's journal before it is made, as `txpool.lake.journals` says.
"""

from __future__ import annotations

import json
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import Accumulator, TaskContext
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from txpool.errors import ConfigurationError, OperationalError, described
from txpool.lake.journals.base import WarehouseJournals
from txpool.spark.commit.attempts import PartitionResult
from txpool.spark.task.task import results_of
from txpool.spark.task.tracing import TaskTrace, ambient_trace, traced
from txpool.spark.task.worker import prepare_worker
from txpool.spark.types.encoding import ColumnEncoding, misfit

#: The schema of the rows that the job returns: a packed PartitionResult for each partition, and the pickled DataFiles.
RESULT = StructType([StructField("packed", StringType()), StructField("files", BinaryType())])


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTask(ABC):
    """The function that mapInArrow runs in every task."""

    gtrid: str
    write: int
    encodings: tuple[ColumnEncoding, ...]
    done: Accumulator[dict[int, tuple[int, int]]] | None = None
    #: The trace of the transaction that is ambient when the task is created.
    trace: TaskTrace = field(default_factory=ambient_trace)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        prepare_worker()
        for packed in results_of(self._write, partition, batches):
            if self.done is not None and "size" in packed:
                self.done.add({partition: tuple(packed["size"])})
            files = packed.pop("yields", b"")
            yield pa.RecordBatch.from_pydict({"packed": [json.dumps(packed)], "files": [files]})

    def _write(self, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        files: list[Any] = []
        rows = size = 0
        with traced(self.trace, self.gtrid, write=self.write, partition=partition, attempt=attempt):
            first = next((batch for batch in batches if batch.num_rows), None)
            if first is not None:
                rows, size, files = self.write_attempt(f"{self.write}.{partition}.{attempt}", chain([first], batches))
        return iter([PartitionResult(partition, attempt, (), {}, (rows, size), pickle.dumps(files)).pack()])

    @abstractmethod
    def write_attempt(self, numbers: str, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, list[Any]]:
        """The numbers of rows and bytes of an attempt, and its files, which are durable."""

    def converted(self, batch: pa.RecordBatch, kinds: pa.Schema) -> pa.RecordBatch:
        """The batch with the types of the table's columns. DataError for a value that a column would change."""
        columns = []
        for place, encoding in enumerate(self.encodings):
            wanted = kinds.field(encoding.column)
            try:
                require_required(batch.column(place), wanted)
                columns.append(_cast(batch.column(place), wanted.type))
            except (ValueError, NotImplementedError) as error:  # also Arrow's
                raise misfit(encoding, error) from error
        fields = [pa.field(each.column, column.type) for each, column in zip(self.encodings, columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTask(FilesTask):
    """The files of an Iceberg table."""

    journals: WarehouseJournals
    #: The table's metadata as JSON, without its snapshots.
    metadata: str

    def write_attempt(self, numbers: str, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, list[Any]]:
        with self.journals.attempt(self.gtrid, numbers) as journal:
            rows, files = self._files(journal, batches)
        return rows, sum(each.file_size_in_bytes for each in files), files

    def _files(self, journal: Any, batches: Iterator[pa.RecordBatch]) -> tuple[int, list[Any]]:
        """The number of rows, and the descriptions of their files, of which each has some rows of a partition."""
        try:
            from pyiceberg.io.pyarrow import _dataframe_to_data_files, bin_pack_record_batches, schema_to_pyarrow
            from pyiceberg.table import TableProperties
            from pyiceberg.table.metadata import TableMetadataUtil

            from txpool.lake.corrections import correct
            from txpool.lake.journals.files import AttemptFiles
            from txpool.lake.values import require_partitionable
        except ImportError as error:
            raise ConfigurationError(
                f"{self.journals.name}: this executor needs pyiceberg: pip install 'txpool[lake]' there "
                f"({described(error)})"
            ) from error
        correct()
        metadata = TableMetadataUtil.parse_raw(self.metadata)
        kinds = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
        most = int(
            metadata.properties.get(
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
            )
        )
        rows = 0
        files: list[Any] = []
        with closing(AttemptFiles(self.journals, journal)) as made:
            io = self.journals.io(made)
            for packed in bin_pack_record_batches(batches, most):
                table = pa.Table.from_batches([self.converted(batch, kinds) for batch in packed])
                require_partitionable(table, metadata, metadata.location)
                rows += table.num_rows
                files += _dataframe_to_data_files(metadata, table, io)
        if sum(each.record_count for each in files) != rows:
            raise OperationalError(f"{metadata.location}: {rows} rows were given, and the files have another number")
        self.journals.sync(made.made)
        return rows, files


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.UuidType):
        from uuid import UUID

        texts = values.to_pylist()
        uuids = [None if text is None else UUID(text) for text in texts]
        if [None if each is None else str(each) for each in uuids] != texts:
            raise ValueError("it is no UUID in its usual form, in lower case and with hyphens")
        found = [None if each is None else each.bytes for each in uuids]
        return pa.ExtensionArray.from_storage(kind, pa.array(found, pa.binary(16)))
    return values.cast(kind)


def require_required(values: pa.Array, wanted: pa.Field) -> None:
    """ValueError for a null in a column, or within it, that must have a value."""
    if not wanted.nullable and values.null_count:
        raise ValueError(f"it is null, and {wanted.name} must have a value")
    if not pa.types.is_nested(wanted.type):
        return
    there = values.drop_null()
    if pa.types.is_struct(wanted.type):
        parts = [(there.field(n), wanted.type.field(n)) for n in range(wanted.type.num_fields)]
    elif pa.types.is_map(wanted.type):
        parts = [(there.keys, wanted.type.key_field), (there.items, wanted.type.item_field)]
    else:
        parts = [(there.flatten(), wanted.type.value_field)]
    for part, field_ in parts:
        require_required(part, field_)
