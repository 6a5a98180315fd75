"""write_table(): a DataFrame into a table, all partitions or none, as a part of the ambient transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from time import monotonic
from typing import TYPE_CHECKING, Literal, get_args

from pyspark.sql import DataFrame

from txpool.datasource import DataSource, find
from txpool.errors import NotSupportedError, ProgrammingError
from txpool.spark.commit.session import context_of, most_partitions, warn_of_risks
from txpool.spark.table.partition_transactions import write_partitions
from txpool.spark.table.report import Progress, WriteReport
from txpool.spark.table.target import read_target
from txpool.spark.types.columns import definitions
from txpool.tm.scope import transaction

if TYPE_CHECKING:
    from txpool.spark.table.table_write import DriverWrite, TaskWrite

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
    """Write a DataFrame into a table as a part of the ambient transaction, or of one of its own.

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

    Into SQLite the driver writes by itself, in its branch: the job ends first, with the rows kept by the executors, and
    then they come partition by partition. A type is refused of which SQLite would make other values.

    Until the commit the transaction itself does not see what went direct, which stays locked: overwrite and upsert of
    that table are refused, unless the first one went `staged`. Where two writes of a transaction, two partitions of
    one, or a task and the driver bring the same unique key, a task or the driver comes to wait for its own transaction:
    seen after about ten seconds, that ends the write by an OperationalError.

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
    manager = source.resource_manager
    if not manager.spark_write:
        raise NotSupportedError(f"write_table() cannot write into {manager.database}. Nothing was done.")
    if not manager.spark_tasks and (strategy != "auto" or atomicity == "partition"):
        raise NotSupportedError(
            f"{source.name} (driver={source.driver}) {manager.why_no_tasks}, which is the driver: leave "
            "strategy='auto' and atomicity='job'. Nothing was done."
        )
    warn_of_risks(context, df, atomicity=atomicity)
    new = create or mode in ("error", "ignore")
    begun = monotonic()
    if atomicity == "partition":
        target = read_target(source, table, definitions(df.schema.fields) if new else None)
        report = write_partitions(df, source, target, mode, transaction_id=transaction_id, progress=progress)
    else:
        # Where the driver fetches them, a partition must have room in its memory.
        most = max_partitions or (most_partitions(context) if manager.spark_tasks else None)
        kind: type[TaskWrite | DriverWrite] = resolve_name(manager.spark_write)
        order = kind(df, source, table, mode, tuple(keys), new, strategy, transaction_id, most, progress)
        with transaction() as ambient:
            report = order.run(ambient)
    return replace(report, seconds=monotonic() - begun)


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
