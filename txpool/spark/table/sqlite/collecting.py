"""Strategy collected: executors keep the rows of a DataFrame, and the driver inserts them into a SQLite table.

A SQLite file has one writer at a time, and all others wait. So Spark's job ends before the transaction locks the file:
executors keep the computed rows, and the driver fetches them partition by partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from txpool.spark.commit.status import TaggedJob
from txpool.spark.table.report import Progress, WriteReport, reporting
from txpool.spark.table.sqlite.target import converted
from txpool.spark.table.staging import StagingMerge
from txpool.spark.table.target import create_statement
from txpool.spark.task.worker import prepare_worker
from txpool.spark.types.columns import mapped_in_arrow
from txpool.spark.types.encoding import ColumnEncoding
from txpool.spark.types.identifiers import quoted_list
from txpool.tm.transaction import Transaction

if TYPE_CHECKING:
    from txpool.dbapi.cursor import PEP249Cursor

COLLECTED = "collected"
_ROWS = StructType([StructField("partition", IntegerType()), StructField("packed", BinaryType())])
#: The staging table, in the connection's temporary database.
STAGING = "temp.txpool_collected"


@contextmanager
def collected(
    df: DataFrame, encodings: Sequence[ColumnEncoding], transaction: Transaction, report: WriteReport
) -> Iterator[CollectedRows]:
    """Run the job of a DataFrame, and keep its rows on the executors for the length of the block.

    Errors: Spark's own if a task failed for good or, in the block, if an executor was lost with the rows it kept.
    """
    with TaggedJob(df.sparkSession.sparkContext, report.label) as job:
        transaction.on_cancel(job.cancel)
        rows = mapped_in_arrow(df, _Pack(encodings), _ROWS).localCheckpoint()
        try:
            attempts, _ = job.attempts()
            partitions = rows.rdd.getNumPartitions()
            yield CollectedRows(rows, replace(report, strategy=COLLECTED, partitions=partitions, attempts=attempts))
        finally:
            # Executors drop the rows now. Otherwise they would wait for the next garbage collection in Java.
            rows._jdf.queryExecution().logical().rdd().unpersist(False)


@dataclass(slots=True)
class CollectedRows:
    """Rows that executors keep, and the insert of them. Used by one thread."""

    rows: DataFrame
    #: The report of the write so far.
    report: WriteReport
    #: The number of partitions whose rows are all inserted.
    done: int = 0

    def insert(
        self, cursor: PEP249Cursor, merge: StagingMerge, progress: Callable[[Progress], object] | None
    ) -> WriteReport:
        """Fetch the rows, and move them into the table within the cursor's transaction."""
        names = merge.layout.names
        cursor.execute(create_statement(STAGING, [*zip(names, merge.layout.declared, strict=True)]))
        statement = f"insert into {STAGING} ({quoted_list(names)}) values ({', '.join('?' * len(names))})"
        with reporting(progress, self._progress, self.report.label):
            for batch in self._fetch():
                cursor.executemany(statement, zip(*(column.to_pylist() for column in batch.columns), strict=True))
                rows, size = self.report.rows + batch.num_rows, self.report.bytes + batch.nbytes
                self.report = replace(self.report, rows=rows, bytes=size)
            self.done = self.report.partitions
        merge.insert(cursor, "where true" if self.report.rows else None)
        cursor.execute(f"drop table {STAGING}")
        return self.report

    def _fetch(self) -> Iterator[pa.RecordBatch]:
        # Spark fetches the next partition while this one is inserted.
        for partition, packed in self.rows.toLocalIterator(prefetchPartitions=True):
            self.done = partition
            with pa.ipc.open_stream(packed) as stream:
                yield from stream

    def _progress(self) -> Progress:
        return Progress(self.report.partitions, self.done, self.report.rows, self.report.bytes)


@dataclass(frozen=True, slots=True)
class _Pack:
    """The function that mapInArrow runs in every task: packs each batch, converted to SQLite's types, into one row."""

    encodings: Sequence[ColumnEncoding]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        prepare_worker()
        for batch in batches:
            if batch.num_rows:
                sink = pa.BufferOutputStream()
                values = converted(batch, self.encodings)
                with pa.ipc.new_stream(sink, values.schema) as stream:
                    stream.write_batch(values)
                partition = pa.array([context.partitionId()], pa.int32())
                yield pa.RecordBatch.from_pydict({"partition": partition, "packed": [sink.getvalue().to_pybytes()]})
