"""What a write_table() was asked for, and how it is done: by tasks, or by the driver where nobody else can write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from contextvars import Context, copy_context
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.resources.postgresql.staging import StagingTable
from txpool.resources.records import EarlierRun
from txpool.spark.commit.direct_writes import note_direct_write, require_visible
from txpool.spark.commit.write import next_number
from txpool.spark.table import sqlite
from txpool.spark.table.collecting import STAGING, collected
from txpool.spark.table.copying import DIRECT
from txpool.spark.table.idempotent_write import IdempotentWrite, fingerprint
from txpool.spark.table.job import TableJob
from txpool.spark.table.merge import StagingMerge
from txpool.spark.table.privileges import require_privileges
from txpool.spark.table.report import Progress, WriteReport
from txpool.spark.table.target import Target, is_written_by, read_target, require_unique, why_staged
from txpool.spark.types.columns import definitions, match
from txpool.tm.transaction import Transaction


@dataclass(frozen=True, slots=True)
class TableWrite:
    """What was asked for."""

    df: DataFrame
    source: DataSource
    table: str
    mode: str
    keys: tuple[str, ...]
    #: The table may be created.
    new: bool
    strategy: str
    transaction_id: str | None
    #: More partitions are joined.
    max_partitions: int | None
    progress: Callable[[Progress], object] | None

    def _begun(self, ambient: Transaction, target: Target) -> tuple[WriteReport, IdempotentWrite | None]:
        report = WriteReport(ambient.gtrid, next_number(ambient), target.name, self.mode)
        if self.transaction_id is None:
            return report, None
        plan = fingerprint(self.df)
        return report, IdempotentWrite(self.source, self.transaction_id, target.name, ambient.gtrid, self.mode, plan)

    def _skipped(self, report: WriteReport, replay: IdempotentWrite, earlier: EarlierRun) -> WriteReport:
        replay.require_same(earlier, self.df)
        return replace(report, partitions=earlier.partitions or 0, rows=earlier.rows or 0)

    def _is_wanted(self, target: Target) -> bool:
        """Whether there is anything to do. ProgrammingError where the table must not be there."""
        if target.exists and self.mode == "error":
            raise ProgrammingError(
                f"{target.name} is there already in {self.source.name}, and mode='error' wants a new one. Nothing was "
                "done."
            )
        return not (target.exists and self.mode == "ignore")

    def _joined(self, df: DataFrame) -> DataFrame:
        return df if self.max_partitions is None else df.coalesce(self.max_partitions)


class TaskWrite(TableWrite):
    """Tasks write, and the driver moves what they stage."""

    def run(self, ambient: Transaction) -> WriteReport:
        """Write it as a part of a transaction, unless an earlier run has."""
        ambient.adopt((), late_branches=False)  # which needs a decision log: better said before the job than after
        new = definitions(self.df.schema.fields) if self.new else None
        target = read_target(self.source, self.table, new, self.keys)
        report, replay = self._begun(ambient, target)
        if replay is None:
            return self._write(ambient, target, new, report)
        with closing(self.source.connect()) as connection:
            earlier = replay.claim(connection)
            if earlier is not None:
                return self._skipped(report, replay, earlier)
            report = self._write(ambient, target, new, report)
            replay.finish(connection, report.partitions, report.rows)
        return report

    def _write(
        self, ambient: Transaction, target: Target, new: list[tuple[str, str]] | None, report: WriteReport
    ) -> WriteReport:
        if not self._is_wanted(target):
            return report
        require_visible(ambient, self.source, target.name, self.mode)
        df, layout = match(self.df, target.columns, target.name)
        require_unique(target, self.keys, layout.names)
        staging = StagingTable(ambient.gtrid, report.write).name
        move = StagingMerge(ambient.gtrid, target, layout, self.mode, self.keys, staging, new or ())
        strategy = _chosen_strategy(self.strategy, ambient, self.source, move)
        require_privileges(
            self.source, target, layout.names, mode=self.mode, keys=self.keys, strategy=strategy, stacklevel=6
        )
        report = TableJob(ambient, self.source, move, strategy, self.progress, report).run(self._joined(df))
        if report.strategy == DIRECT and report.rows:
            note_direct_write(ambient, self.source, target.name)
        return report


class DriverWrite(TableWrite):
    """The driver writes, once the job has ended: into a file that it shares with no task."""

    def run(self, ambient: Transaction) -> WriteReport:
        """Write it as a part of a transaction, unless an earlier run has."""
        new = sqlite.definitions(self.df.schema.fields) if self.new else None
        # A transaction that has the lock keeps others from reading, too, in some journal modes.
        aside = (copy_context() if ambient.works_in(self.source.name) else Context()).run
        target = aside(sqlite.read_target, self.source, self.table, new, self.keys)
        report, replay = self._begun(ambient, target)
        if replay is not None and (earlier := aside(replay.earlier_run)) is not None:
            return self._skipped(report, replay, earlier)
        if not self._is_wanted(target):
            return report
        df, layout = sqlite.match(self.df, target.columns, target.name)
        require_unique(target, self.keys, layout.names)
        move = StagingMerge(ambient.gtrid, target, layout, self.mode, self.keys, STAGING, new or ())
        ambient.enlist(self.source)  # better refused now than after the job; the lock comes with the first statement
        with (
            collected(self._joined(df), layout.encodings, ambient, report) as rows,
            closing(self.source.connect()) as connection,
        ):
            if replay is not None and (earlier := replay.claim(connection)) is not None:
                return self._skipped(report, replay, earlier)
            report = rows.insert(connection.cursor(), move, self.progress)
            if replay is not None:
                replay.finish(connection, report.partitions, report.rows)
        return report


def _chosen_strategy(strategy: str, ambient: Transaction, source: DataSource, move: StagingMerge) -> str:
    """Staged where direct cannot be, which is an error for whoever insists on it."""
    why = why_staged(source, move.target, move.mode)
    if why is None and ambient.works_in(source.name):
        with closing(source.connect()) as connection:
            if is_written_by(connection, move.target.name):
                why = f"this transaction has locked {move.target.name} on the driver, and tasks would wait for that"
    if why is not None and strategy == "direct":
        raise ProgrammingError(f"strategy='direct' cannot be: {why}. Write with 'auto' or 'staged'. Nothing was done.")
    return strategy if why is None else "staged"
