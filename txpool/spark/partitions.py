"""foreach_partition() and map_partitions(): Spark jobs whose tasks write in the driver's ambient transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import RDD

from txpool.datasource import DataSource, Source, find
from txpool.errors import ProgrammingError
from txpool.idempotency.once import RecordIn
from txpool.resources.base import Role
from txpool.spark.commit.attempts import require_done
from txpool.spark.commit.before_job import note_locations, settle_earlier_runs
from txpool.spark.commit.session import context_of, warn_of_risks
from txpool.spark.commit.slots import reserve
from txpool.spark.commit.status import TaggedJob
from txpool.spark.commit.write import SparkWrite, next_number
from txpool.spark.table.idempotent_job import JobId, claim_job
from txpool.spark.task.datasources import TaskDatasources, datasources_for
from txpool.spark.task.task import PartitionTask, results_of, unpickled
from txpool.tm.ambient import current


@dataclass(frozen=True, slots=True)
class PartitionsReport:
    """What a foreach_partition() did. Its work commits or rolls back with the transaction."""

    gtrid: str
    #: The number of the write within the transaction, from 0.
    write: int
    partitions: int
    #: Task attempts that Spark started: partitions, retries and speculative copies.
    attempts: int
    #: Branches that stay prepared until the transaction is decided.
    branches: int
    #: The gtrid of the earlier run that did the work under the same transaction_id; this run then did nothing.
    done_by: str | None = None


def foreach_partition(
    df_or_rdd: Any,
    write: Callable[[Iterator[Any]], object],
    *,
    datasources: Iterable[str | Path | DataSource] | None = None,
    transaction_id: str | None = None,
    record_in: RecordIn | None = None,
) -> PartitionsReport:
    """Run `write(rows)` for every partition on the executors, as a part of the ambient transaction.

    What `write` returns or yields is dropped; map_partitions() returns it.

    Inside `write`, `txpool.connect(...)` joins the transaction; its datasources must be able to prepare (mode=xa).
    Tasks know the datasources that this process has registered or opened, the ones in the coordinator's file, the ones
    that `write` refers to, and the ones passed in `datasources`. The passed ones must have a free prepared slot for
    every partition; that is checked before the job. The log notes all of them before the job, so that recovery finds
    what a crash leaves there. A task that works in another database, or logs in as another role, is refused before it
    prepares anything.

    What a partition or the driver has written stays locked until the transaction ends. A partition that waits for such
    a row or key would wait for ever: after about ten seconds that ends the job with OperationalError. The sessions of
    tasks have the application_name gtrid/write/partition.

    With a `transaction_id`, such as "load-2026-11-22", a rerun of a committed job runs nothing, and its report has the
    earlier run's gtrid (`done_by`). A rerun of a job that was rolled back is run. If the earlier run is in doubt, it is
    resolved first. The record is a row in the datasource `record_in`, written in the same transaction; in SQLite it
    locks the file until the transaction ends. A function with another name, or a DataFrame with another plan or other
    folders, is refused under the same id. A lambda, or the content of an RDD, cannot be compared.

    Call it in the thread that began the transaction. Errors: ProgrammingError outside of a transaction or without a
    decision log; Spark's own if a task failed for good; OperationalError if too few prepared slots are free, or if what
    was prepared is no longer there. After an error the transaction can only roll back, if the job had begun or its
    transaction_id was taken.
    """
    passed = [find(target) for target in datasources or ()]
    return run_partitions(JobId("foreach_partition", transaction_id, record_in), df_or_rdd, write, passed)


def map_partitions(
    df_or_rdd: Any,
    function: Callable[[Iterator[Any]], Iterable[Any]],
    *,
    datasources: Iterable[str | Path | DataSource] | None = None,
    transaction_id: str | None = None,
    record_in: RecordIn | None = None,
) -> list[Any]:
    """Run `function(rows)` as foreach_partition() does, and return what it yields, in the order of the partitions.

    The job runs at once. The yields of each partition come from the attempt whose rows commit: a retry does not adopt
    an earlier attempt but does the work again, and an attempt that Spark has given up is rolled back within seconds, so
    that no retry has to wait for its locks. Yields stay in the memory of their task until it has prepared, and all of
    them in the driver's memory; Spark's collect() sends them, within spark.driver.maxResultSize. Errors: as
    foreach_partition(); Spark's own if the yields are too large or cannot be pickled; AlreadyDone if a run has
    committed under the same `transaction_id`, since its yields are not kept.
    """
    yields: dict[int, list[Any]] = {}
    passed = [find(target) for target in datasources or ()]
    run_partitions(JobId("map_partitions", transaction_id, record_in), df_or_rdd, function, passed, yields)
    return [value for partition in sorted(yields) for value in yields[partition]]


def run_partitions(
    job_id: JobId,
    df_or_rdd: Any,
    function: Callable[[Iterator[Any]], object],
    passed: Sequence[Source],
    yields: dict[int, list[Any]] | None = None,
) -> PartitionsReport:
    """Run one job in the ambient transaction, whose tasks may prepare in the sources `passed`.

    With `yields` the values that `function` yields are put there.

    Must be called directly by the function that the user calls, so that warnings point to the user's line.
    """
    transaction, caller = current(), f"{job_id.kind}()"
    if transaction is None or transaction.ended:
        raise ProgrammingError(
            f"{caller} is a part of a transaction, and there is none here: write `with txpool.transaction():` around it"
        )
    transaction.require_active()
    transaction.adopt((), late_branches=False)  # raises without a decision log, before the job rather than after it
    context = context_of(df_or_rdd, caller)
    warn_of_risks(context, stacklevel=4)
    known = datasources_for(passed, function)
    task_datasources = TaskDatasources.pack(passed, known)
    for datasource in passed:
        datasource.branch_recovery()  # raises for a datasource that cannot prepare
        datasource.resource_manager.before_job(datasource, transaction)
    number = next_number(transaction)
    with (
        claim_job(transaction, job_id, df_or_rdd, function) as claim,
        TaggedJob(context, f"{transaction.gtrid}/{number}") as job,
    ):
        if yields is not None:
            claim.require_new()
        if claim.earlier is not None:
            partitions = claim.earlier.partitions or 0
            return PartitionsReport(transaction.gtrid, number, partitions, 0, 0, done_by=claim.earlier.gtrid)
        transaction.on_cancel(job.cancel)
        able = {
            it.name: it
            for it in known.values()
            if (isinstance(it, DataSource) or it in passed)
            and it.role is Role.PREPARED
            and it.name in task_datasources.settings
        }
        settle_earlier_runs(transaction.log, {each.name: each for each in (*passed, *able.values())}.values())
        # To find a DataFrame's RDD, Spark may run jobs of its own.
        rdd: Any = df_or_rdd if isinstance(df_or_rdd, RDD) else df_or_rdd.rdd
        partitions = rdd.getNumPartitions()
        claim.finish(partitions)
        if not partitions:
            return PartitionsReport(transaction.gtrid, number, partitions=0, attempts=0, branches=0)
        for datasource in passed:
            if isinstance(datasource, DataSource):
                reserve(datasource, partitions, transaction.gtrid).release_after(transaction)
        locations = note_locations(
            transaction.log,
            passed,
            [it for it in able.values() if it not in passed],
            timeouts={transaction.gtrid: transaction.timeout},
        )
        yielding = yields is not None
        task = PartitionTask(
            transaction.gtrid,
            number,
            partitions,
            function,
            task_datasources,
            locations,
            yielding=yielding,
            characteristics=transaction.characteristics,
        )

        def collect() -> list[dict[str, Any]]:
            packed: list[dict[str, Any]] = rdd.mapPartitionsWithIndex(partial(results_of, task)).collect()
            for result in packed:
                require_done(result)
            if yields is not None:  # unpickled here, so that an error makes the transaction rollback-only
                yields.update((result["partition"], unpickled(result.pop("yields"))) for result in packed)
            return packed

        finished = SparkWrite(transaction, number, job, able, adoptable=not yielding).run(partitions, collect)
        return PartitionsReport(transaction.gtrid, number, partitions, finished.attempts, finished.branches)
