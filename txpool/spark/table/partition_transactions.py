"""write_table() with atomicity="partition": each partition is a transaction of its own, committed exactly once.

The rows of a partition are committed together with a record of the partition, in a table that recovery never cleans. A
retry, or a later run of the job, finds the record and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from txpool.datasource import DataSource, connect
from txpool.errors import ProgrammingError
from txpool.spark.commit.attempts import PartitionResult, require_done
from txpool.spark.commit.status import TaggedJob
from txpool.spark.table.dialect import PartitionRecords, TaskCopy, dialect_of
from txpool.spark.table.idempotent_write import IdempotentWrite, fingerprint
from txpool.spark.table.report import CopyProgress, FinishedPartitions, Progress, WriteReport, reporting
from txpool.spark.table.target import Target
from txpool.spark.table.tasks import RESULT, STRATEGY, ArrowTask
from txpool.spark.task.datasources import TaskDatasources
from txpool.spark.types.columns import mapped_in_arrow
from txpool.tm.ambient import current

PER_PARTITION = "each"
#: The length that a server keeps of an application_name.
_MAX_LABEL_LENGTH = 63


@dataclass(frozen=True, slots=True)
class PartitionTransaction:
    """The task: one partition, in a local transaction that ends committed."""

    copy: TaskCopy
    records: PartitionRecords
    datasources: TaskDatasources
    transaction_id: str
    target: str

    def __call__(self, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        context = TaskContext.get()
        assert context is not None
        self.datasources.unpack()
        key = [self.transaction_id, self.target, partition]
        with closing(connect(self.copy.datasource)) as connection:
            cursor = connection.cursor()
            rows = self.records.claim(cursor, key)
            if rows is not None:
                size = rows, 0
            else:
                first = next((batch for batch in batches if batch.num_rows), None)
                size = (0, 0) if first is None else self.copy.run(connection, chain([first], batches))
                self.records.finish(cursor, key, size[0])
            connection.commit()
        return iter([PartitionResult(partition, context.taskAttemptId(), (), {}, size).pack()])


def write_partitions(
    df: DataFrame,
    source: DataSource,
    target: Target,
    mode: str,
    *,
    transaction_id: str | None,
    progress: Callable[[Progress], object] | None,
) -> WriteReport:
    """Write the partitions that no earlier run has committed. ProgrammingError if the options do not fit."""
    ambient = current()
    if transaction_id is None or mode != "append" or not target.exists or (ambient is not None and not ambient.ended):
        raise ProgrammingError(
            "atomicity='partition' needs a transaction_id, mode 'append', an existing table, and no transaction around "
            "it, since each partition is a transaction of its own. Nothing was done."
        )
    dialect = dialect_of(source)
    selected, layout = dialect.match(df, target.columns, target.name)
    dialect.require_privileges(source, target, layout.names, strategy=PER_PARTITION)
    context = df.sparkSession.sparkContext
    label = f"{context.applicationId}/{transaction_id}"[:_MAX_LABEL_LENGTH]
    write = IdempotentWrite(source, transaction_id, target.name, label, mode, fingerprint(df, by_file=True))
    with closing(source.connect()) as connection:
        earlier = write.claim(connection)
        connection.commit()
    dialect.partitions.create(source)
    report = WriteReport(label, 0, target.name, mode)
    if earlier is not None and earlier.rows is not None:
        write.require_same(earlier, df)
        return replace(report, partitions=earlier.partitions or 0, rows=earlier.rows)
    copy = dialect.copy_into(source.name, target, layout, label)
    datasources = TaskDatasources.pack([source], {source.name: source})
    writer = PartitionTransaction(copy, dialect.partitions, datasources, transaction_id, target.name)
    done = context.accumulator({}, FinishedPartitions()) if progress is not None else None
    with TaggedJob(context, f"{label}/{write.plan}") as job, ExitStack() as stack:
        rdd = mapped_in_arrow(selected, ArrowTask({PER_PARTITION: writer}, done), RESULT).rdd
        partitions = rdd.getNumPartitions()
        with closing(source.connect()) as connection:
            write.require_partitions(connection, partitions)
            connection.commit()
        context.setLocalProperty(STRATEGY, PER_PARTITION)
        stack.callback(context.setLocalProperty, STRATEGY, "")
        stack.enter_context(reporting(progress, CopyProgress(source, label, partitions, done).progress, label))
        packed = [json.loads(row.packed) for row in rdd.collect()]
        attempts, _ = job.attempts()
    for result in packed:
        require_done(result)
    rows, size = sum(result["size"][0] for result in packed), sum(result["size"][1] for result in packed)
    with closing(source.connect()) as connection:
        write.finish(connection, partitions, rows)
        connection.commit()
    return replace(report, strategy=PER_PARTITION, partitions=partitions, attempts=attempts, rows=rows, bytes=size)
