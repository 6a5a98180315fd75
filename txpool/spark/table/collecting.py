"""Rows on their way into SQLite, where only the driver writes.

A file has one writer, whom all others wait for. So Spark's job ends before the transaction touches the file: executors
keep the rows, never to be computed again, and the driver fetches them by partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from txpool.spark.commit.status import TaggedJob
from txpool.spark.commit.worker import prepare_worker
from txpool.spark.table.merge import StagingMerge
from txpool.spark.table.report import Progress, WriteReport, reporting
from txpool.spark.table.sqlite import converted
from txpool.spark.table.target import create_statement, listed
from txpool.spark.types.encoding import ColumnEncoding
from txpool.tm.transaction import Transaction

COLLECTED = "collected"
#: A staging table of the connection's own, in no file of the user's.
STAGING = "temp.txpool_collected"


@contextmanager
def collected(
    df: DataFrame, wires: Sequence[ColumnEncoding], transaction: Transaction, report: WriteReport
) -> Iterator[CollectedRows]:
    """A DataFrame's rows as executors keep them for the length of a block, whose beginning is the job.

    Errors: Spark's own where a task failed for good, or, in the block, an executor was lost with what it kept.
    """
    with TaggedJob(df.sparkSession.sparkContext, report.label) as job:
        transaction.on_cancel(job.cancel)
        kept = df.mapInArrow(_Pack(wires), "place int, packed binary").localCheckpoint()
        try:
            attempts, _ = job.attempts()
            partitions = kept.rdd.getNumPartitions()
            yield CollectedRows(kept, replace(report, strategy=COLLECTED, partitions=partitions, attempts=attempts))
        finally:
            # Executors drop it now, rather than when Java next collects its garbage.
            kept._jdf.queryExecution().logical().rdd().unpersist(False)


@dataclass(slots=True)
class CollectedRows:
    """Rows that executors keep. Used by one thread."""

    kept: DataFrame
    #: What is known of the write so far.
    report: WriteReport
    #: Partitions whose rows are all there.
    done: int = 0

    def insert(self, cursor: Any, move: StagingMerge, progress: Callable[[Progress], object] | None) -> WriteReport:
        """Fetch the rows, and move them into the table within the cursor's transaction."""
        names = move.layout.names
        cursor.execute(create_statement(STAGING, [*zip(names, move.layout.declared, strict=True)]))
        statement = f"insert into {STAGING} ({listed(names)}) values ({', '.join('?' * len(names))})"  # noqa: S608
        with reporting(progress, self._look, self.report.label):
            for batch in self._fetch():
                cursor.executemany(statement, zip(*(column.to_pylist() for column in batch.columns), strict=True))
                rows, size = self.report.rows + batch.num_rows, self.report.bytes + batch.nbytes
                self.report = replace(self.report, rows=rows, bytes=size)
            self.done = self.report.partitions
        move.insert(cursor, "where true" if self.report.rows else None)
        cursor.execute(f"drop table {STAGING}")
        return self.report

    def _fetch(self) -> Iterator[pa.RecordBatch]:
        # With one partition more on its way than the one that is inserted.
        for place, packed in self.kept.toLocalIterator(prefetchPartitions=True):
            self.done = place
            with pa.ipc.open_stream(packed) as stream:
                yield from stream

    def _look(self) -> Progress:
        return Progress(self.report.partitions, self.done, self.report.rows, self.report.bytes)


@dataclass(frozen=True, slots=True)
class _Pack:
    """The function that mapInArrow runs in every task: each batch becomes one value, in what SQLite has of types."""

    wires: Sequence[ColumnEncoding]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this
        prepare_worker()
        for batch in batches:
            if batch.num_rows:
                sink = pa.BufferOutputStream()
                plain = converted(batch, self.wires)
                with pa.ipc.new_stream(sink, plain.schema) as stream:
                    stream.write_batch(plain)
                yield pa.RecordBatch.from_pydict(
                    {"place": pa.array([context.partitionId()], pa.int32()), "packed": [sink.getvalue().to_pybytes()]}
                )
