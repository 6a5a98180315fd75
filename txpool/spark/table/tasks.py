"""What a task of write_table() does: it writes the record batches of one partition.

A direct write is a part of the task's subordinate transaction, as in foreach_partition(), and ends prepared. A write
into a staging table is a local transaction, which the task commits; each row has the attempt that wrote it, and the
driver moves the rows of the chosen attempts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from txpool.datasource import connect
from txpool.spark.commit.attempts import PartitionResult
from txpool.spark.table.dialect import TaskCopy
from txpool.spark.task.datasources import TaskDatasources
from txpool.spark.task.task import results_of
from txpool.spark.task.tracing import TaskTrace, ambient_trace, traced
from txpool.spark.task.worker import prepare_worker

#: The local property of the job that has the strategy of its tasks.
STRATEGY = "txpool.write.place"
DIRECT, STAGED = "direct", "staged"
#: The schema of the rows that the job returns: a packed PartitionResult for each partition.
RESULT = StructType([StructField("packed", StringType())])
#: The additional column of a staging table: the attempt that wrote the row.
ATTEMPT = "txpool_attempt"


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
    #: If tasks create the staging table: called with the connection, it returns what is used in place of `copy`.
    prepare: Callable[[Any], TaskCopy] | None = None
    #: The trace of the transaction that is ambient when the task is created.
    trace: TaskTrace = field(default_factory=ambient_trace)

    def __call__(self, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        context = TaskContext.get()
        assert context is not None
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
        assert context is not None
        partition = context.partitionId()
        prepare_worker()
        write = self.writers[context.getLocalProperty(STRATEGY) or DIRECT]
        for packed in results_of(write, partition, batches):
            if self.done is not None and "size" in packed:
                self.done.add({partition: tuple(packed["size"])})
            yield pa.RecordBatch.from_pydict({"packed": [json.dumps(packed)]})
