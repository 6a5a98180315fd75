"""write_table(): a DataFrame into a table, all partitions or none, as a part of the ambient transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Literal, get_args

from pyspark.sql import DataFrame

from txpool.datasource import DataSource, find
from txpool.errors import NotSupportedError, ProgrammingError
from txpool.resources.staging import StagingTable
from txpool.scope import transaction
from txpool.spark.columns import definitions, match
from txpool.spark.copying import DIRECT
from txpool.spark.each import write_each
from txpool.spark.job import TableJob
from txpool.spark.moving import Move
from txpool.spark.privileges import require_privileges
from txpool.spark.replay import Replay, fingerprint, must_count
from txpool.spark.report import Progress, WriteReport
from txpool.spark.session import context_of, guard, most_partitions
from txpool.spark.target import Target, is_written_by, look, require_unique, why_staged
from txpool.spark.unseen import note_direct, require_seen
from txpool.spark.write import next_number
from txpool.transaction import Transaction

Mode = Literal["append", "overwrite", "upsert", "error", "ignore"]
Strategy = Literal["auto", "direct", "staged"]
Atomicity = Literal["job", "partition"]


def write_table(
    df: DataFrame,
    datasource: str | Path | DataSource,
    table: str,
    mode: Mode = "append",
    *,
    keys: Sequence[str] = (),
    create: bool = False,
    strategy: Strategy = "auto",
    atomicity: Atomicity = "job",
    transaction_id: str | None = None,
    max_partitions: int | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> WriteReport:
    """Write a DataFrame into a table of PostgreSQL as a part of the ambient transaction, or of one of its own.

    Columns are matched by name, and types are checked before any task runs. `append` adds the rows. `overwrite`
    replaces all rows at once: readers see the old ones until the commit. `upsert` inserts, or updates the row that has
    the same `keys`, which a unique index must cover; no two rows of the DataFrame may have the same. `error` and
    `ignore` are for a table that is not there yet, and create it, as `create` does for the other modes.

    Strategy `direct` has each task COPY into the table, on a branch that stays prepared until the end: one slot of
    max_prepared_transactions for each partition. `staged` has them COPY into an unlogged table in the schema
    txpool_spark, from which the driver moves the rows in its own branch. `auto` is direct where it can be. More
    partitions than `max_partitions` are joined without a shuffle, as Spark's JDBC writer does by its numPartitions:
    default four for each core, since a task costs Spark more than many rows do; with dynamic allocation, no limit.
    `progress` is called about once a second, in a thread of its own.

    Until the commit the transaction itself does not see what went direct: overwrite and upsert of that table are
    refused, and a later append of the same unique key waits for ever. So have the first one `staged` there.

    With a `transaction_id`, such as "nightly-2026-11-20", a rerun of a write that has committed writes nothing and
    reports strategy `skipped`, one that a crash has left in doubt is settled first, and one of other data is refused.
    With it, `atomicity="partition"` makes each partition a transaction of its own (mode append, outside of any
    transaction): partitions appear one by one, each exactly once over retries and reruns, and no slot is needed. The
    DataFrame must come in the same partitions each time.

    Call it in the thread that began the transaction. Errors: ProgrammingError where the table, a column or a type does
    not fit, and nothing has run; Spark's own where a task failed for good; DataError for keys that are none;
    OperationalError where too few slots are free, or staged rows are lost. After an error the transaction rolls back.
    """
    _check(mode, keys, strategy, atomicity, max_partitions)
    context = context_of(df, "write_table()")
    source = find(datasource)
    if source.driver != "psycopg":
        raise NotSupportedError(
            f"{source.name} (driver={source.driver}) is a file with one writer, which tasks cannot share: read the "
            "rows on the driver (df.toLocalIterator()), and insert them in the same transaction. Nothing was done."
        )
    guard(context, df, atomicity=atomicity)
    new = definitions(df.schema.fields) if create or mode in ("error", "ignore") else None
    most = max_partitions or most_partitions(context)
    order = _Order(df, source, table, mode, tuple(keys), new, strategy, transaction_id, most, progress)
    begun = monotonic()
    if atomicity == "partition":
        report = write_each(
            df, source, look(source, table, new), mode, transaction_id=transaction_id, progress=progress
        )
    else:
        with transaction() as ambient:
            ambient.adopt((), loose_ends=False)  # which needs a decision log: better said before the job than after
            report = order.fulfil(ambient)
    return replace(report, seconds=monotonic() - begun)


@dataclass(frozen=True, slots=True)
class _Order:
    """What write_table() was asked for."""

    df: DataFrame
    source: DataSource
    table: str
    mode: Mode
    keys: tuple[str, ...]
    #: The columns of a table that may be created.
    new: list[tuple[str, str]] | None
    strategy: Strategy
    transaction_id: str | None
    #: More partitions are joined.
    most: int | None
    progress: Callable[[Progress], object] | None

    def fulfil(self, ambient: Transaction) -> WriteReport:
        """Write it as a part of a transaction, unless an earlier run has."""
        target = look(self.source, self.table, self.new, self.keys)
        report = WriteReport(ambient.gtrid, next_number(ambient), target.name, self.mode)
        if self.transaction_id is None:
            return self._write(ambient, target, report)
        plan = fingerprint(self.df)
        replay = Replay(self.source, self.transaction_id, target.name, ambient.gtrid, self.mode, plan)
        with closing(self.source.connect()) as connection:
            earlier = replay.claim(connection)
            if earlier is not None:
                replay.require_whole(earlier)
                if must_count(self.df):
                    replay.require_rows(earlier, self.df.count())
                return replace(report, partitions=earlier.partitions or 0, rows=earlier.rows or 0)
            report = self._write(ambient, target, report)
            replay.finish(connection, report.partitions, report.rows)
        return report

    def _write(self, ambient: Transaction, target: Target, report: WriteReport) -> WriteReport:
        if target.exists and self.mode == "ignore":
            return report
        if target.exists and self.mode == "error":
            raise ProgrammingError(
                f"{target.name} is there already in {self.source.name}, and mode='error' wants a new one. Nothing was "
                "done."
            )
        require_seen(ambient, self.source, target.name, self.mode)
        df, layout = match(self.df, target.columns, target.name)
        if self.most is not None:
            df = df.coalesce(self.most)
        require_unique(target, self.keys, layout.names)
        staging = StagingTable(ambient.gtrid, report.write).name
        move = Move(ambient.gtrid, target, layout, self.mode, self.keys, staging, self.new or ())
        strategy = _chosen(self.strategy, ambient, self.source, move)
        require_privileges(
            self.source, target, layout.names, mode=self.mode, keys=self.keys, strategy=strategy, stacklevel=6
        )
        report = TableJob(ambient, self.source, move, strategy, self.progress, report).run(df)
        if report.strategy == DIRECT and report.rows:
            note_direct(ambient, self.source, target.name)
        return report


def _check(mode: str, keys: Sequence[str], strategy: str, atomicity: str, most: int | None) -> None:
    for name, value, known in (
        ("mode", mode, get_args(Mode)),
        ("strategy", strategy, get_args(Strategy)),
        ("atomicity", atomicity, get_args(Atomicity)),
    ):
        if value not in known:
            raise ProgrammingError(f"{name} is {value!r}: it is one of {', '.join(known)}. Nothing was done.")
    if most is not None and (most < 1 or atomicity == "partition"):
        raise ProgrammingError(
            f"max_partitions is {most!r}: it is a number from 1, for atomicity='job', since a rerun might "
            "join partitions otherwise. Nothing was done."
        )
    if isinstance(keys, str) or bool(keys) != (mode == "upsert"):
        raise ProgrammingError(
            f"mode is {mode!r}, and keys are {keys!r}: upsert wants keys=[…], the columns that tell rows apart, and no "
            "other mode does. Nothing was done."
        )


def _chosen(strategy: Strategy, ambient: Transaction, source: DataSource, move: Move) -> str:
    """Staged where direct cannot be, which is an error for whoever insists on it."""
    why = why_staged(source, move.target, move.mode)
    if why is None and source.name in ambient._slots:
        with closing(source.connect()) as connection:
            if is_written_by(connection, move.target.name):
                why = f"this transaction has locked {move.target.name} on the driver, and tasks would wait for that"
    if why is not None and strategy == "direct":
        raise ProgrammingError(f"strategy='direct' cannot be: {why}. Write with 'auto' or 'staged'. Nothing was done.")
    return strategy if why is None else "staged"
