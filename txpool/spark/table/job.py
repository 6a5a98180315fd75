"""The Spark job of a write_table(), by strategy direct (into the table) or staged (into a staging table)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from txpool.datasource import DataSource
from txpool.resources.recovery_access import StagingTable
from txpool.spark.commit.attempts import PartitionResult, require_all
from txpool.spark.commit.before_job import note_locations
from txpool.spark.commit.slots import Reservation, SlotSession, reserve, slot_session, try_reserve
from txpool.spark.commit.status import TaggedJob
from txpool.spark.commit.write import SparkWrite, WriteUndone
from txpool.spark.table.dialect import Merge, TableDialect
from txpool.spark.table.report import CopyProgress, FinishedPartitions, Progress, WriteReport, reporting
from txpool.spark.table.staging import drop_staged_after
from txpool.spark.table.tasks import (
    DIRECT,
    RESULT,
    STAGED,
    STRATEGY,
    ArrowTask,
    StagedCopy,
    measure,
)
from txpool.spark.task.datasources import TaskDatasources
from txpool.spark.task.task import PartitionTask
from txpool.spark.types.columns import mapped_in_arrow
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: How long a task of a direct write waits for a row's lock, in seconds, if the write can be repeated staged.
AUTO_LOCK_SECONDS = 5


@dataclass(slots=True)
class TableJob:
    """One write of a transaction into one table. Used by one thread, once."""

    transaction: Transaction
    source: DataSource
    dialect: TableDialect
    #: The staging table, if the write is staged.
    table: StagingTable
    merge: Merge
    #: `direct`, `staged`, or `auto`: direct if enough slots are free, else staged.
    strategy: str
    progress: Callable[[Progress], object] | None
    #: The report of the write so far.
    report: WriteReport
    #: What runs while Spark plans: what earlier runs have left in the database is being settled, and is before the job.
    beside: Executor
    settled: Future[None]

    def run(self, df: DataFrame) -> WriteReport:
        """Write the rows of a DataFrame whose columns have the names and types of the table's."""
        context = df.sparkSession.sparkContext
        with ExitStack() as stack:
            job = stack.enter_context(TaggedJob(context, self.report.label))
            self.transaction.on_cancel(job.cancel)
            session = None
            if self.strategy != STAGED:
                session = stack.enter_context(slot_session(self.source, self.beside))
            done = context.accumulator({}, FinishedPartitions()) if self.progress is not None else None
            mapped = mapped_in_arrow(df, ArrowTask(self._writers(), done), RESULT)
            mapped._jdf.queryExecution().executedPlan()  # planned meanwhile; Spark keeps the plan
            self.settled.result()
            # Spark may run jobs of its own here, to determine the number of partitions.
            rdd = mapped.rdd
            partitions = rdd.getNumPartitions()

            def collect() -> list[dict[str, Any]]:
                copying = CopyProgress(self.source, self.report.label, partitions, done)
                with reporting(self.progress, copying.progress, self.report.label):
                    return [json.loads(row.packed) for row in rdd.collect()]

            stack.callback(context.setLocalProperty, STRATEGY, "")
            reservation = self._reserve_slots(partitions, session)
            if reservation is not None:
                try:
                    context.setLocalProperty(STRATEGY, DIRECT)
                    return self._direct(job, partitions, collect, reservation)
                except WriteUndone as undone:
                    reservation.release()
                    logger.warning(
                        "%s: the write is repeated with strategy staged: %s",
                        self.report.label,
                        self.dialect.why_direct_failed(undone.__cause__),
                    )
            context.setLocalProperty(STRATEGY, STAGED)
            return self._staged(job, partitions, collect)

    def _writers(self) -> dict[str, Any]:
        """The task's function for each strategy."""
        datasources = TaskDatasources.pack([self.source], {self.source.name: self.source})
        layout = self.merge.layout
        wait = AUTO_LOCK_SECONDS if self.strategy == "auto" else None
        direct = self.dialect.copy_into(self.source.name, self.merge.target, layout, lock_seconds=wait)
        staged = self.dialect.copy_staged(self.source.name, self.table, layout, self.report.label)
        gtrid, write, log = self.transaction.gtrid, self.report.write, self.transaction.log
        timeouts = {gtrid: self.transaction.timeout}
        locations = note_locations(log, [self.source], timeouts=timeouts) if self.strategy != STAGED else frozenset()
        return {
            DIRECT: PartitionTask(
                gtrid,
                write,
                None,
                direct,
                datasources,
                locations,
                measure,
                characteristics=self.transaction.characteristics,
            ),
            STAGED: StagedCopy(staged, datasources, gtrid, write),
        }

    def _reserve_slots(self, partitions: int, session: SlotSession | None) -> Reservation | None:
        """Reserve the slots of a direct write until the transaction has ended; None for a staged write."""
        if self.strategy == STAGED:
            return None
        reservation = try_reserve(self.source, partitions + 1, session)  # the driver's own branch needs one, too
        if not reservation.enough:
            if self.strategy == "auto":
                return None
            reservation = reserve(self.source, partitions, self.transaction.gtrid)
        reservation.release_after(self.transaction)
        return reservation

    def _direct(
        self, job: TaggedJob, partitions: int, collect: Callable[[], list[dict[str, Any]]], reservation: Reservation
    ) -> WriteReport:
        """Each task prepares a branch. WriteUndone if that was not possible, and strategy staged may be tried."""

        def may_undo(error: Exception) -> bool:
            return self.strategy == "auto" and self.dialect.why_direct_failed(error) is not None

        write = SparkWrite(
            self.transaction,
            self.report.write,
            job,
            {self.source.name: self.source},
            session_of=lambda name: reservation.session() if name == self.source.name else None,
        )
        finished = write.run(partitions, collect, may_undo=may_undo)
        return self._finished_report(DIRECT, finished.attempts, finished.results)

    def _staged(self, job: TaggedJob, partitions: int, collect: Callable[[], list[dict[str, Any]]]) -> WriteReport:
        """Each task commits its rows into the staging table; the driver moves those of one attempt a partition."""
        self.dialect.staging(self.source).create(self.table, self.dialect.staged_columns(self.merge.layout))
        drop_staged_after(self.transaction, self.source, self.table)
        try:
            gtrid = self.transaction.gtrid
            results = [PartitionResult.unpack(gtrid, packed) for packed in collect()]
            attempts, all_succeeded = job.attempts()
            require_all(gtrid, results, partitions)
            watch = self.dialect.watch(self.transaction, self.report.write, [self.source])
            with closing(self.source.connect()) as connection, watch:
                self.merge.run(connection.cursor(), results)
        except BaseException:
            # Tasks that still write keep the staging table from being dropped. Recovery drops it after the transaction.
            self.transaction.adopt((), late_branches=True)
            job.cancel(wait=True)
            raise
        self.transaction.adopt((), late_branches=not all_succeeded)
        return self._finished_report(STAGED, attempts, results)

    def _finished_report(self, strategy: str, attempts: int, results: Sequence[PartitionResult]) -> WriteReport:
        rows, size = (sum(numbers) for numbers in zip((0, 0), *(result.size for result in results), strict=True))
        return replace(
            self.report, strategy=strategy, partitions=len(results), attempts=attempts, rows=rows, bytes=size
        )
