"""write_table(), which writes all partitions of a DataFrame into a table, or none; and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from time import monotonic
from typing import TYPE_CHECKING, Literal, get_args

from pyspark.sql import DataFrame

from txpool.datasource import Source, find_source
from txpool.datasource.datasource import as_database
from txpool.errors import NotSupportedError, ProgrammingError
from txpool.resources.parts import NO_SPARK
from txpool.spark.commit.session import context_of, most_useful, warn_of_risks
from txpool.spark.table.dialect import dialect_of
from txpool.spark.table.partition_transactions import write_partitions
from txpool.spark.table.report import Progress, WriteReport
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from txpool.spark.table.table_write import TableWrite

Mode = Literal["append", "overwrite", "upsert", "error", "ignore"]
Strategy = Literal["auto", "direct", "staged"]
Atomicity = Literal["job", "partition"]


def write_table(
    df: DataFrame,
    datasource: str | Path | Source,
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
    """Write a DataFrame into a table, as a part of the ambient transaction or in a transaction of its own.

    Columns are matched by name, and types are checked before any task runs. `append` adds the rows. `overwrite`
    replaces all rows at once: other sessions see the old rows until the commit. `upsert` inserts rows, or updates the
    row that has the same `keys`; a unique index must cover the keys, and no two rows of the DataFrame may have the same
    key. `error` and `ignore` create the table; if it exists, `error` raises and `ignore` does nothing. With `create`
    the other modes create a missing table, too.

    With strategy `direct` each task writes into the table, in a branch that stays prepared until the end; in PostgreSQL
    each partition needs a slot of max_prepared_transactions. With `staged` tasks write into a staging table, in
    PostgreSQL an unlogged one in the schema txpool_spark, and the driver moves the rows in its own branch. `auto` is
    direct if that is possible, and staged if tasks of a direct write would wait for each other. If there are
    more partitions than `max_partitions`, they are coalesced without a shuffle, as Spark's JDBC writer does by
    numPartitions. The default is four for each core, since a task costs more than many rows do, and one for at most
    1 MiB, as Spark counts, that it holds in memory already; with dynamic allocation there is no other limit.
    `progress` is called about once a second, in a thread of its own.

    Into SQLite the driver writes, in its own branch: the job ends first, executors keep the rows, and the driver
    fetches them partition by partition. Types whose values SQLite would change are refused.

    Into an Iceberg table (driver = iceberg; `table` is as db.orders) each task writes files, which the transaction's
    snapshot names; the files of lost attempts are removed. For `upsert` the driver writes files anew that have rows
    with the same keys. Of a REST server's catalog tables take mode `append` alone. Into a Delta table (driver = delta)
    each task writes files, too, and rows can only be appended.

    Until the commit the transaction itself cannot see rows that were written `direct`, and they stay locked: overwrite
    and upsert of that table are refused, unless the first write was `staged`. If two writes of a transaction, two
    partitions of one write, or a task and the driver write the same unique key, a task or the driver waits for its own
    transaction: after about ten seconds that ends the write with OperationalError. In MariaDB and MySQL the server's
    innodb_lock_wait_timeout ends it.

    With a `transaction_id`, such as "nightly-2026-11-20", a rerun of a committed write writes nothing and reports
    strategy `skipped`. If the earlier run is in doubt, it is resolved first; a rerun with other data is refused. With
    it, `atomicity="partition"` makes each partition a transaction of its own (mode append, outside of any transaction):
    partitions become visible one by one, each is written exactly once over retries and reruns, and no slots are needed.
    The DataFrame must have the same partitions each time.

    Call it in the thread that began the transaction. Errors: ProgrammingError if the table, a column or a type does not
    fit, before anything has run; Spark's own if a task failed for good; DataError if two rows have the same key, or a
    key is NULL; OperationalError if too few slots are free, or staged rows are lost. After an error the transaction
    rolls back.
    """
    if not isinstance(table, str) or not table:
        raise ProgrammingError(f"table is {table!r}: give the table's name. Nothing was done.")
    _check(mode, keys, strategy, atomicity, max_partitions)
    outer = current()
    if outer is not None and not outer.ended:
        outer.characteristics.require_writable(outer.gtrid, "write_table()")
    context = context_of(df, "write_table()")
    source = find_source(datasource)
    spark = source.resource_manager.spark or NO_SPARK
    if not spark.write:
        raise NotSupportedError(
            f"write_table() cannot write into {source.resource_manager.database}. Nothing was done."
        )
    if not spark.tasks and (strategy != "auto" or atomicity == "partition"):
        raise NotSupportedError(
            f"{source.name} (driver={source.driver}) {spark.why_no_tasks}: use strategy='auto' and "
            "atomicity='job'. Nothing was done."
        )
    if atomicity == "job":
        warn_of_risks(context)
    create = create or mode in ("error", "ignore")
    begun = monotonic()
    if atomicity == "partition":
        database = as_database(source)
        dialect = dialect_of(database)
        target = dialect.read_target(database, table, dialect.definitions(df.schema.fields) if create else None)
        report = write_partitions(df, database, target, mode, transaction_id=transaction_id, progress=progress)
    else:
        # The driver fetches whole partitions into its memory, so there they are coalesced only on request.
        limit = max_partitions or (most_useful(df) if spark.tasks else None)
        kind: type[TableWrite] = resolve_name(spark.write)
        write = kind(df, source, table, mode, tuple(keys), create, strategy, transaction_id, limit, progress)
        with transaction() as ambient:
            report = write.run(ambient)
    return replace(report, seconds=monotonic() - begun)


def _check(mode: str, keys: Sequence[str], strategy: str, atomicity: str, max_partitions: int | None) -> None:
    for name, value, known in (
        ("mode", mode, get_args(Mode)),
        ("strategy", strategy, get_args(Strategy)),
        ("atomicity", atomicity, get_args(Atomicity)),
    ):
        if value not in known:
            raise ProgrammingError(f"{name} is {value!r}: it is one of {', '.join(known)}. Nothing was done.")
    if max_partitions is not None and (max_partitions < 1 or atomicity == "partition"):
        raise ProgrammingError(
            f"max_partitions is {max_partitions!r}: it is a number from 1, and only for atomicity='job', since a rerun "
            "might coalesce partitions differently. Nothing was done."
        )
    if isinstance(keys, str) or bool(keys) != (mode == "upsert"):
        raise ProgrammingError(
            f"mode is {mode!r}, and keys are {keys!r}: upsert needs keys=[…], the columns that identify a row, and no "
            "other mode takes them. Nothing was done."
        )
