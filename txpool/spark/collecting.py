"""Rows on their way into SQLite, where only the driver writes.

A file has one writer, whom all others wait for. So Spark's job ends before the transaction touches the file: executors
keep the rows, never to be computed again, and the driver fetches them by partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from txpool.spark.encoding import Wire
from txpool.spark.moving import Move
from txpool.spark.report import Progress, Watch, WriteReport
from txpool.spark.sqlite import converted
from txpool.spark.status import TaggedJob
from txpool.spark.target import listed, quoted
from txpool.spark.worker import quicken
from txpool.transaction import Transaction

COLLECTED = "collected"
#: A staging table of the connection's own, in no file of the user's.
STAGING = "temp.txpool_collected"


class Collected:
    """A DataFrame's rows as executors keep them for the length of a block, whose beginning is the job.

    Used by one thread. Spark's own errors where a task failed for good, or an executor was lost with what it kept.
    """

    def __init__(self, df: DataFrame, wires: Sequence[Wire], transaction: Transaction, report: WriteReport) -> None:
        self._df = df
        self._wires = wires
        self._transaction = transaction
        #: What is known of the write so far.
        self._report = report
        self._label = f"{transaction.gtrid}/{report.write}"
        self._done = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            job = stack.enter_context(TaggedJob(self._df.sparkSession.sparkContext, self._label))
            self._transaction.on_cancel(job.cancel)
            packed = self._df.mapInArrow(_Pack(self._wires), "place int, packed binary")
            self._kept = packed.localCheckpoint()
            stack.callback(_forget, self._kept)
            attempts, _ = job.attempts()
            partitions = self._kept.rdd.getNumPartitions()
            self._report = replace(self._report, strategy=COLLECTED, partitions=partitions, attempts=attempts)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def insert(self, cursor: Any, move: Move, progress: Callable[[Progress], object] | None) -> WriteReport:
        """Fetch the rows, and move them into the table within the cursor's transaction."""
        columns = zip(move.layout.names, move.layout.declared, strict=True)
        cursor.execute(f"create table {STAGING} ({', '.join(f'{quoted(name)} {kind}' for name, kind in columns)})")
        marks = ", ".join("?" * len(self._wires))
        statement = f"insert into {STAGING} ({listed(move.layout.names)}) values ({marks})"  # noqa: S608
        watch: AbstractContextManager[object] = nullcontext()
        if progress is not None:
            watch = Watch(progress, self._look, self._label)
        with watch:
            for batch in self._fetch():
                cursor.executemany(statement, zip(*(column.to_pylist() for column in batch.columns), strict=True))
                rows, size = self._report.rows + batch.num_rows, self._report.bytes + batch.nbytes
                self._report = replace(self._report, rows=rows, bytes=size)
            self._done = self._report.partitions
        move.take(cursor, "where true" if self._report.rows else None)
        cursor.execute(f"drop table {STAGING}")
        return self._report

    def _fetch(self) -> Iterator[pa.RecordBatch]:
        # With one partition more on its way than the one that is inserted.
        for place, packed in self._kept.toLocalIterator(prefetchPartitions=True):
            self._done = place
            with pa.ipc.open_stream(packed) as stream:
                yield from stream

    def _look(self) -> Progress:
        return Progress(self._report.partitions, self._done, self._report.rows, self._report.bytes)


@dataclass(frozen=True, slots=True)
class _Pack:
    """The function that mapInArrow runs in every task: each batch becomes one value, in what SQLite has of types."""

    wires: Sequence[Wire]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this
        quicken()
        for batch in batches:
            if batch.num_rows:
                sink = pa.BufferOutputStream()
                plain = converted(batch, self.wires)
                with pa.ipc.new_stream(sink, plain.schema) as stream:
                    stream.write_batch(plain)
                yield pa.RecordBatch.from_pydict(
                    {"place": pa.array([context.partitionId()], pa.int32()), "packed": [sink.getvalue().to_pybytes()]}
                )


def _forget(kept: DataFrame) -> None:
    """Have executors drop what they keep, rather than when Java next collects its garbage."""
    kept._jdf.queryExecution().logical().rdd().unpersist(False)
