"""One write_table() into an Iceberg table within a transaction: tasks write its files, the driver stages a snapshot."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txpool.errors import NotSupportedError, ProgrammingError
from txpool.lake.opening import catalog
from txpool.spark.commit.attempts import PartitionResult, require_all
from txpool.spark.commit.status import TaggedJob
from txpool.spark.table.lake.task import RESULT, FilesTask, LakeTask
from txpool.spark.table.report import FinishedPartitions, Progress, WriteReport, reporting
from txpool.spark.table.table_write import TableWrite
from txpool.spark.table.target import Target
from txpool.spark.table.tasks import DIRECT
from txpool.spark.task.task import unpickled
from txpool.spark.types.columns import mapped_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from txpool.lake.changes import LakeTable
    from txpool.lake.rest.catalog import RestLakeCatalog
    from txpool.lake.tables import LakeCatalog
    from txpool.tm.transaction import Transaction

#: The newest format of tables that pyiceberg writes.
_FORMAT = 2


class FilesWrite(TableWrite):
    """Tasks write the rows into files, and the driver publishes those of one attempt for each partition."""

    def accumulator(self, df: DataFrame) -> Any:
        """Where tasks tell what they have finished; None if nobody asks."""
        return None if self.progress is None else df.sparkSession.sparkContext.accumulator({}, FinishedPartitions())

    def run_job(
        self, ambient: Transaction, df: DataFrame, task: FilesTask, report: WriteReport
    ) -> tuple[WriteReport, list[Any]]:
        """Run the job. Of each partition it returns one attempt's result, whose files are published."""
        rdd = mapped_in_arrow(self._coalesced(df), task, RESULT).rdd
        partitions = rdd.getNumPartitions()

        def measured() -> Progress:
            sizes = list(dict(task.done.value).values())  # type: ignore[union-attr]  # asked only if there is one
            return Progress(partitions, len(sizes), sum(rows for rows, _ in sizes), sum(size for _, size in sizes))

        with TaggedJob(rdd.context, report.label) as job:
            ambient.on_cancel(job.cancel)
            try:
                with reporting(self.progress, measured, report.label):
                    rows = rdd.collect()
                results = [PartitionResult.unpack(ambient.gtrid, json.loads(row.packed)) for row in rows]
                require_all(ambient.gtrid, results, partitions)
                attempts, all_succeeded = job.attempts()
            except BaseException:
                ambient.adopt((), late_branches=True)  # a task that still writes leaves files, which recovery removes
                job.cancel(wait=True)
                raise
            ambient.adopt((), late_branches=not all_succeeded)
        number, size = (sum(numbers) for numbers in zip((0, 0), *(result.size for result in results), strict=True))
        report = replace(report, strategy=DIRECT, partitions=len(results), attempts=attempts, rows=number, bytes=size)
        return report, [each for row in rows for each in unpickled(row.files)]


class LakeWrite(FilesWrite):
    """Tasks write the rows into files of the warehouse. Retries leave files, which no snapshot names."""

    def run(self, ambient: Transaction) -> WriteReport:
        """Write as a part of the transaction, unless an earlier run has."""
        if not all(self.table.split(".")) or "." not in self.table:
            raise ProgrammingError(
                f"{self.table!r} is not the name of an Iceberg table: write namespace.table. Nothing was done."
            )
        ambient.adopt((), late_branches=False)  # raises without a decision log, before the job rather than after it
        lake = catalog(self.source)
        self._require_possible(lake)
        target = Target(f"{self.source.name}.{self.table}", exists=lake.table_exists(self.table))
        if not target.exists and not self.create:
            raise ProgrammingError(
                f"there is no table {self.table} in {self.source.name}: name an existing table, or create it by "
                "create=True. Nothing was done."
            )
        namespace = self.table.rpartition(".")[0]
        if not (target.exists or lake.appends_only or lake.namespace_exists(namespace)):
            raise ProgrammingError(
                f"there is no namespace {namespace} in {self.source.name}: within a transaction, "
                f"txpool.lake.catalog(…).create_namespace({namespace!r}) creates it. Nothing was done."
            )
        report, record = self._begin_report(ambient, target, lake.datasource)
        if record is None or lake.datasource is None:
            return self._write(ambient, lake, target, report)
        with closing(lake.datasource.connect()) as connection:
            earlier = record.claim(connection)
            if earlier is not None:
                return self._skipped(report, record, earlier)
            report = self._write(ambient, lake, target, report)
            record.finish(connection, report.partitions, report.rows)
        return report

    def _require_possible(self, lake: LakeCatalog | RestLakeCatalog) -> None:
        """NotSupportedError for what a REST server's catalog does not take, before any task."""
        if lake.appends_only and self.mode in ("overwrite", "upsert"):
            raise NotSupportedError(
                f"write_table() does not {self.mode} tables of the REST catalog {self.source.name}, and nothing was "
                "done: others may change a table between the decision and its commit, and only an append can be put on "
                "top of whatever they have committed. Write mode='append', or have the catalog in a datasource"
            )
        if lake.datasource is None and self.transaction_id is not None:
            raise NotSupportedError(
                f"write_table(transaction_id=…) has no table for its record in the REST catalog {self.source.name}, "
                "and nothing was done: write txpool.transaction(transaction_id=…, record_in=…) around it"
            )

    def _write(
        self, ambient: Transaction, lake: LakeCatalog | RestLakeCatalog, target: Target, report: WriteReport
    ) -> WriteReport:
        from txpool.spark.table.lake.columns import match, new_schema
        from txpool.spark.table.lake.upsert import Replacement, require_keys

        if not self._is_wanted(target):
            return report
        if not target.exists:
            lake.create_table(self.table, new_schema(self.df.schema.fields))
        table = lake.load_table(self.table)
        if table.metadata.format_version > _FORMAT:
            raise NotSupportedError(
                f"{target.name} has format version {table.metadata.format_version}, and pyiceberg writes no newer than "
                f"{_FORMAT}. Nothing was done."
            )
        df, layout = match(self.df, table.schema(), target.name)
        replaced = None
        if self.mode == "upsert":
            require_keys(self.keys, layout.names, table.schema(), target)
            replaced = Replacement(ambient.gtrid, target, self.keys)
        changes = table.transaction()  # the journal is there before any task
        task = LakeTask(
            gtrid=ambient.gtrid,
            write=report.write,
            encodings=layout.encodings,
            done=self.accumulator(df),
            journals=lake.journals,
            metadata=_metadata(table),
        )
        report, files = self.run_job(ambient, df, task, report)
        changes.publish(files, overwrite=self.mode == "overwrite", replaced=replaced)
        changes.commit_transaction()
        return report


def _metadata(table: LakeTable) -> str:
    """What tasks need to know of a table: all but its history."""
    history: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "current_snapshot_id": None,
    }
    text: str = table.metadata.model_copy(update=history).model_dump_json()
    return text
