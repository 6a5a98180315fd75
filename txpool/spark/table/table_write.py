"""One write_table() within a transaction: by tasks, or by the driver if only the driver can write to the database."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from txpool.datasource import DataSource, Source
from txpool.errors import ProgrammingError
from txpool.resources.records import EarlierRun
from txpool.spark.commit.before_job import settle_earlier_runs
from txpool.spark.commit.direct_writes import note_direct_write, require_visible
from txpool.spark.commit.session import has_at_most
from txpool.spark.commit.write import next_number
from txpool.spark.table.dialect import Merge, TableDialect, dialect_of, require_not_alone
from txpool.spark.table.idempotent_write import IdempotentWrite, fingerprint
from txpool.spark.table.job import TableJob
from txpool.spark.table.report import Progress, WriteReport
from txpool.spark.table.target import Target
from txpool.spark.table.tasks import DIRECT
from txpool.tm.transaction import Transaction


@dataclass(frozen=True, slots=True)
class TableWrite:
    """The arguments of a write_table(), checked, and what both kinds of write have in common."""

    df: DataFrame
    source: Source
    table: str
    mode: str
    keys: tuple[str, ...]
    #: A missing table is created.
    create: bool
    strategy: str
    transaction_id: str | None
    #: If the DataFrame has more, they are coalesced.
    max_partitions: int | None
    progress: Callable[[Progress], object] | None

    def run(self, ambient: Transaction) -> WriteReport:
        """Write as a part of the transaction, unless an earlier run has."""
        raise NotImplementedError

    def _begin_report(
        self, ambient: Transaction, target: Target, records: DataSource | None
    ) -> tuple[WriteReport, IdempotentWrite | None]:
        report = WriteReport(ambient.gtrid, next_number(ambient), target.name, self.mode)
        if self.transaction_id is None or records is None:
            return report, None
        plan = fingerprint(self.df)
        return report, IdempotentWrite(records, self.transaction_id, target.name, ambient.gtrid, self.mode, plan)

    def _skipped(self, report: WriteReport, record: IdempotentWrite, earlier: EarlierRun) -> WriteReport:
        record.require_same(earlier, self.df)
        return replace(report, partitions=earlier.partitions or 0, rows=earlier.rows or 0)

    def _is_wanted(self, target: Target) -> bool:
        """Whether there is anything to do. ProgrammingError if the table exists and the mode is `error`."""
        if target.exists and self.mode == "error":
            raise ProgrammingError(
                f"{target.name} exists already in {self.source.name}, and mode='error' needs a new table. Nothing was "
                "done."
            )
        return not (target.exists and self.mode == "ignore")

    def _coalesced(self, df: DataFrame) -> DataFrame:
        limit = self.max_partitions
        return df if limit is None or has_at_most(self.df, limit) else df.coalesce(limit)


class TaskWrite(TableWrite):
    """Tasks write the rows, and the driver moves the ones that they have staged."""

    source: DataSource

    def run(self, ambient: Transaction) -> WriteReport:
        """Write as a part of the transaction, unless an earlier run has."""
        require_not_alone(self.source)
        ambient.adopt((), late_branches=False)  # raises without a decision log, before the job rather than after it
        dialect = dialect_of(self.source)
        worked = ambient.works_in(self.source.name)
        new = dialect.definitions(self.df.schema.fields, self.keys) if self.create else None
        target = dialect.read_target(self.source, self.table, new, self.keys, gtrid=ambient.gtrid)
        report, record = self._begin_report(ambient, target, self.source)
        if record is None:
            return self._write(ambient, dialect, target, new, report, worked=worked)
        with closing(self.source.connect()) as connection:
            earlier = record.claim(connection)
            if earlier is not None:
                return self._skipped(report, record, earlier)
            report = self._write(ambient, dialect, target, new, report, worked=worked)
            record.finish(connection, report.partitions, report.rows)
        return report

    def _write(
        self,
        ambient: Transaction,
        dialect: TableDialect,
        target: Target,
        new: list[tuple[str, str]] | None,
        report: WriteReport,
        *,
        worked: bool,
    ) -> WriteReport:
        """`worked` says that the transaction has worked in the datasource before this write."""
        if not self._is_wanted(target):
            return report
        require_visible(ambient, self.source, target.name, self.mode)
        with ThreadPoolExecutor(1, "txpool-spark-earlier-runs") as beside:
            # Spark plans meanwhile.
            settled = beside.submit(settle_earlier_runs, ambient.log, [self.source])
            df, layout = dialect.match(self.df, target.columns, target.name)
            dialect.require_unique(target, self.keys, layout.names)
            table = dialect.staging_table(ambient.gtrid, report.write)
            merge = dialect.merge(self.source, table, target, layout, mode=self.mode, keys=self.keys, created=new or ())
            strategy = _chosen_strategy(self.strategy, self.source, dialect, merge, worked=worked)
            dialect.require_privileges(
                self.source, target, layout.names, mode=self.mode, keys=self.keys, strategy=strategy, stacklevel=6
            )
            job = TableJob(
                ambient, self.source, dialect, table, merge, strategy, self.progress, report, beside, settled
            )
            report = job.run(self._coalesced(df))
        if report.strategy == DIRECT and report.rows:
            note_direct_write(ambient, self.source, target.name)
        return report


def _chosen_strategy(strategy: str, source: DataSource, dialect: TableDialect, merge: Merge, *, worked: bool) -> str:
    """`staged` if direct is not possible, else the given one. ProgrammingError if `direct` was asked for then."""
    why = dialect.why_staged(source, merge.target, merge.mode)
    if why is None and worked:
        with closing(source.connect()) as connection:
            if dialect.is_written_by(connection, merge.target.name):
                why = f"this transaction has locks of {merge.target.name} on the driver, and tasks would wait for them"
    if why is not None and strategy == "direct":
        raise ProgrammingError(
            f"strategy='direct' is not possible: {why}. Write with 'auto' or 'staged'. Nothing was done."
        )
    return strategy if why is None else "staged"
