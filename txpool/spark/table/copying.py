"""What a task of write_table() does: it writes the record batches of one partition by COPY.

COPY into the table itself is a part of the task's subordinate transaction, as in foreach_partition(), and ends
prepared. COPY into a staging table is a local transaction, which the task commits; each row has the attempt that wrote
it, and the driver moves the rows of the chosen attempts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, TaskContext

from txpool.datasource import connect
from txpool.resources.postgresql.qualified import qualified
from txpool.spark.commit.attempts import PartitionResult
from txpool.spark.commit.task import results_of
from txpool.spark.commit.task_datasources import TaskDatasources
from txpool.spark.commit.tracing import TaskTrace, ambient_trace, traced
from txpool.spark.commit.worker import prepare_worker
from txpool.spark.table.dialect import TaskCopy
from txpool.spark.types.columns import Layout
from txpool.spark.types.encoding import ColumnEncoding, copy_options, encode
from txpool.spark.types.identifiers import quoted, quoted_list

#: The local property of the job that has the strategy of its tasks.
STRATEGY = "txpool.write.place"
DIRECT, STAGED = "direct", "staged"
#: The schema of the rows that the job returns: a packed PartitionResult for each partition.
RESULT = "packed string"
#: The additional column of a staging table: the attempt that wrote the row.
ATTEMPT = "txpool_attempt"
_NAME_SESSION = qualified("select set_config('application_name', %s, true)")
_UTF8 = "utf-8"
_IN_UTF8 = qualified("select set_config('client_encoding', 'UTF8', true)")


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """COPY of one partition.

    `label` is the session's application_name while it runs; empty if the transaction sets the name itself.
    """

    datasource: str
    statement: str
    encodings: tuple[ColumnEncoding, ...]
    label: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """COPY within the ambient transaction. Returns the number of rows, and of bytes sent."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return 0, 0  # without a connection there is no branch
        return self.run(connect(self.datasource), chain([first], batches))

    def run(self, connection: Any, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """COPY over a connection. Returns the number of rows, and of bytes sent."""
        rows = size = 0
        cursor = connection.cursor()
        if self.label:
            cursor.execute(_NAME_SESSION, [self.label])
        if connection.info.encoding != _UTF8:  # texts of the binary format are in the session's
            cursor.execute(_IN_UTF8)
        with cursor.copy(self.statement) as copy:
            for number, piece in encode(batches, self.encodings):
                copy.write(piece)
                rows += number
                size += len(piece)
        return rows, size


def copy_into(datasource: str, table: str, layout: Layout, label: str = "") -> PartitionCopy:
    """The COPY into the table itself."""
    return _copy(datasource, table, layout.names, layout.encodings, label)


def copy_staged(datasource: str, staging: str, layout: Layout, label: str) -> PartitionCopy:
    """The COPY into a staging table, whose columns are `staged_columns`."""
    encodings = (*layout.encodings, ColumnEncoding(ATTEMPT, "bigint"))
    return _copy(datasource, staging, (*layout.names, ATTEMPT), encodings, label)


def _copy(
    datasource: str, table: str, names: Sequence[str], encodings: tuple[ColumnEncoding, ...], label: str
) -> PartitionCopy:
    statement = f"copy {table} ({quoted_list(names)}) from stdin ({copy_options(encodings)})"
    return PartitionCopy(datasource, statement, encodings, label)


def staged_columns(layout: Layout) -> list[str]:
    """The columns of a staging table as SQL declares them."""
    declared = zip(layout.names, layout.declared, strict=True)
    return [*(f"{quoted(name)} {kind}" for name, kind in declared), f"{ATTEMPT} bigint not null"]


def measure(batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    """The number of rows of a partition that an earlier attempt has written, and of their bytes in Arrow."""
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += batch.nbytes
    return rows, size


@dataclass(frozen=True, slots=True)
class StagedCopy:
    """Writes one partition into a staging table, in a local transaction of its own."""

    copy: TaskCopy
    datasources: TaskDatasources
    gtrid: str
    write: int
    #: Where tasks create the staging table: called with the connection, it returns what is used in place of `copy`.
    prepare: Callable[[Any], TaskCopy] | None = None
    #: The trace of the transaction that is ambient when the task is created.
    trace: TaskTrace = field(default_factory=ambient_trace)

    def __call__(self, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this
        attempt = context.taskAttemptId()
        self.datasources.unpack()
        size = 0, 0
        with traced(self.trace, self.gtrid, write=self.write, partition=partition, attempt=attempt):
            first = next((batch for batch in batches if batch.num_rows), None)
            if first is not None:
                with closing(connect(self.copy.datasource)) as connection:
                    copy = self.copy if self.prepare is None else self.prepare(connection)
                    size = copy.run(connection, (with_attempt(attempt, batch) for batch in chain([first], batches)))
                    connection.commit()
        return iter([PartitionResult(partition, attempt, (), {}, size).pack()])


def with_attempt(attempt: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with an additional column for the attempt."""
    column = pa.array(np.full(batch.num_rows, attempt, np.int64))
    return pa.RecordBatch.from_arrays([*batch.columns, column], [*batch.schema.names, ATTEMPT])


@dataclass(frozen=True, slots=True)
class ArrowTask:
    """The function that DataFrame.mapInArrow runs in every task.

    It has a writer for each strategy: the strategy is chosen later, when the number of partitions is known.
    """

    writers: Mapping[str, Callable[[int, Iterator[pa.RecordBatch]], Iterator[dict[str, Any]]]]
    done: Accumulator[dict[int, tuple[int, int]]] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this
        partition = context.partitionId()
        prepare_worker()
        write = self.writers[context.getLocalProperty(STRATEGY) or DIRECT]
        for packed in results_of(write, partition, batches):
            if self.done is not None and "size" in packed:
                self.done.add({partition: tuple(packed["size"])})
            yield pa.RecordBatch.from_pydict({"packed": [json.dumps(packed)]})
