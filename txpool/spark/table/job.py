"""The Spark job of a write_table(): its tasks COPY into the table itself, or into a staging table."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from txpool.datasource import DataSource
from txpool.resources.postgresql.staging import Staging, StagingTable
from txpool.spark.commit.attempts import PartitionResult, require_all
from txpool.spark.commit.locations import note_locations
from txpool.spark.commit.self_deadlock import SelfDeadlockDetector
from txpool.spark.commit.slots import NO_SLOT, SlotReservation, reserve
from txpool.spark.commit.status import TaggedJob
from txpool.spark.commit.task import PartitionTask
from txpool.spark.commit.task_datasources import TaskDatasources
from txpool.spark.commit.write import SparkWrite, WriteUndone
from txpool.spark.table.copying import (
    DIRECT,
    RESULT,
    STAGED,
    STRATEGY,
    ArrowTask,
    StagedCopy,
    copy_into,
    copy_staged,
    measure,
    staged_columns,
)
from txpool.spark.table.merge import StagingMerge, drop_staged
from txpool.spark.table.report import CopyProgress, FinishedPartitions, Progress, WriteReport, reporting
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")


@dataclass(slots=True)
class TableJob:
    """One write of a transaction into one table. Used by one thread, once."""

    transaction: Transaction
    source: DataSource
    merge: StagingMerge
    #: `direct` and `staged` insist; `auto` is direct where slots are free for it.
    strategy: str
    progress: Callable[[Progress], object] | None
    #: What is known of it so far.
    report: WriteReport

    def run(self, df: DataFrame) -> WriteReport:
        """Write the rows of a DataFrame that has the table's columns."""
        context = df.sparkSession.sparkContext
        with ExitStack() as stack:
            job = stack.enter_context(TaggedJob(context, self.report.label))
            self.transaction.on_cancel(job.cancel)
            done = context.accumulator({}, FinishedPartitions()) if self.progress is not None else None
            # Spark may run jobs of its own here, to find out how many partitions there are.
            rdd = df.mapInArrow(ArrowTask(self._writers(), done), RESULT).rdd
            partitions = rdd.getNumPartitions()

            def collect() -> list[dict[str, Any]]:
                copying = CopyProgress(self.source, self.report.label, partitions, done)
                with reporting(self.progress, copying.progress, self.report.label):
                    return [json.loads(row.packed) for row in rdd.collect()]

            stack.callback(context.setLocalProperty, STRATEGY, "")
            kept = self._reserved(partitions)
            if kept is not None:
                try:
                    context.setLocalProperty(STRATEGY, DIRECT)
                    return self._direct(job, partitions, collect)
                except WriteUndone as taken:
                    kept.release()
                    logger.warning("%s: it goes on staged: %s", self.report.label, taken.__cause__)
            context.setLocalProperty(STRATEGY, STAGED)
            return self._staged(job, partitions, collect)

    @property
    def _table(self) -> StagingTable:
        return StagingTable(self.transaction.gtrid, self.report.write)

    def _writers(self) -> dict[str, Any]:
        """What a task does, by the place it writes to."""
        luggage = TaskDatasources.pack([self.source], {self.source.name: self.source})
        layout = self.merge.layout
        direct = copy_into(self.source.name, self.merge.target.name, layout)
        staged = copy_staged(self.source.name, self._table.name, layout, self.report.label)
        places = note_locations(self.transaction.log, [self.source]) if self.strategy != STAGED else frozenset()
        return {
            DIRECT: PartitionTask(self.transaction.gtrid, self.report.write, None, direct, luggage, places, measure),
            STAGED: StagedCopy(staged, luggage, self.transaction.gtrid, self.report.write),
        }

    def _reserved(self, partitions: int) -> SlotReservation | None:
        """The slots of a direct write, kept until the transaction has ended; None for a staged one."""
        if self.strategy == STAGED:
            return None
        kept = SlotReservation(self.source, partitions + 1)  # the driver's own branch needs one, too
        if not kept.enough:
            if self.strategy == "auto":
                return None
            kept = reserve(self.source, partitions, self.transaction.gtrid)
        self.transaction.after_completion(lambda _: kept.release())
        return kept

    def _direct(self, job: TaggedJob, partitions: int, collect: Callable[[], list[dict[str, Any]]]) -> WriteReport:
        """Each task prepares a branch. TakenBack where a stranger has taken the slots, and the rows may go staged."""
        write = SparkWrite(self.transaction, self.report.write, job, {self.source.name: self.source})
        done = write.run(partitions, collect, may_undo=lambda error: self.strategy == "auto" and NO_SLOT in str(error))
        return self._done(DIRECT, done.attempts, done.results)

    def _staged(self, job: TaggedJob, partitions: int, collect: Callable[[], list[dict[str, Any]]]) -> WriteReport:
        """Each task commits its rows into the staging table, and the driver moves those of one attempt for each."""
        staging = Staging(self.source.name, self.source.driver_adapter)
        staging.create(self._table, staged_columns(self.merge.layout))
        self.transaction.after_completion(lambda _: drop_staged(self.source, self._table))
        try:
            gtrid = self.transaction.gtrid
            results = [PartitionResult.unpack(gtrid, packed) for packed in collect()]
            attempts, all_succeeded = job.attempts()
            require_all(gtrid, results, partitions)
            watch = SelfDeadlockDetector(self.transaction, self.report.write, [self.source])
            with closing(self.source.connect()) as connection, watch:
                self.merge.run(connection.cursor(), results)
        except BaseException:
            # Tasks that nobody has heard of keep the table from being dropped: recovery does it once this has ended.
            self.transaction.adopt((), late_branches=True)
            job.cancel(wait=True)
            raise
        self.transaction.adopt((), late_branches=not all_succeeded)
        return self._done(STAGED, attempts, results)

    def _done(self, strategy: str, attempts: int, results: Sequence[PartitionResult]) -> WriteReport:
        rows, size = (sum(numbers) for numbers in zip((0, 0), *(result.size for result in results), strict=True))
        return replace(
            self.report, strategy=strategy, partitions=len(results), attempts=attempts, rows=rows, bytes=size
        )
