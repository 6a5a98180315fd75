"""foreach_partition() and map_partitions(): a Spark job whose tasks write through the driver's ambient transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import RDD

from txpool.datasource import DataSource, find
from txpool.errors import ProgrammingError
from txpool.idempotency import RecordIn
from txpool.resources.base import Role
from txpool.spark.commit.locations import note_locations
from txpool.spark.commit.session import context_of, warn_of_risks
from txpool.spark.commit.slots import reserve
from txpool.spark.commit.status import TaggedJob
from txpool.spark.commit.task import PartitionTask, unpickled
from txpool.spark.commit.task_datasources import TaskDatasources, datasources_for
from txpool.spark.commit.write import SparkWrite, next_number
from txpool.spark.table.idempotent_job import JobId, claimed
from txpool.tm.ambient import current


@dataclass(frozen=True, slots=True)
class PartitionsReport:
    """What a foreach_partition() did; its work commits or rolls back with the transaction."""

    gtrid: str
    #: Which write of the transaction it was, from 0.
    write: int
    partitions: int
    #: Task attempts that Spark started: partitions, retries and speculative copies.
    attempts: int
    #: Branches that stand prepared until the transaction is decided.
    branches: int
    #: The gtrid of the run that has done it, under the same transaction_id; this one has done nothing then.
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

    What it returns or yields is dropped: map_partitions() keeps it.

    Inside `write`, `txpool.connect(...)` joins the transaction; its datasources must be able to prepare (mode=xa).
    Tasks know those that this process has registered or opened, those of the coordinator's file, those that `write`
    mentions, and `datasources`; of the last it is checked first that they have a free prepared transaction for every
    partition. The log notes them before the job, so that recovery finds what a crash leaves there: a task that works in
    another database, or logs in as another role, is refused before it prepares anything.

    What a partition has written stays locked until the transaction ends, and so does what the driver has. A partition
    that comes to wait for such a row or key would wait for ever: once that was seen twice in some ten seconds, it ends
    the job by an OperationalError. Tasks work under the application_name gtrid/write/partition.

    With a `transaction_id`, such as "load-2026-11-22", a rerun of a job that has committed runs nothing, and its report
    says who has done it (`done_by`); one that was rolled back is run, and one in doubt is settled first. The record is
    a row in the datasource `record_in`, a part of the same transaction; in SQLite it locks the file until that ends.
    A function of another name, or a DataFrame with another plan or other folders, under the same id is refused; what
    a lambda or an RDD does cannot be told.

    Call it in the thread that began the transaction. Errors: ProgrammingError outside of a transaction or without a
    decision log; Spark's own where a task failed for good; OperationalError where too few prepared transactions are
    free, or what was prepared is gone. Once the job has begun, or has its name, the transaction can only roll back
    after an error.
    """
    return _run(JobId("foreach_partition", transaction_id, record_in), df_or_rdd, write, datasources)


def map_partitions(
    df_or_rdd: Any,
    function: Callable[[Iterator[Any]], Iterable[Any]],
    *,
    datasources: Iterable[str | Path | DataSource] | None = None,
    transaction_id: str | None = None,
    record_in: RecordIn | None = None,
) -> list[Any]:
    """foreach_partition() with a function whose yields are wanted: a list of them, in the order of the partitions.

    The job runs at once. Each partition's yields are those of the very attempt whose rows commit: a retry adopts
    nothing of an attempt that was lost, but does the work again, and what Spark has given up is rolled back within
    seconds, so that no retry waits for its locks. Yields are held in the memory of their task until it has prepared,
    and all of them in the driver's; they travel by Spark's collect(), within spark.driver.maxResultSize. Errors: as
    foreach_partition(), and where yields are too many or cannot be pickled; AlreadyDone where a run has committed under
    the same `transaction_id`, since its yields are not kept.
    """
    yields: dict[int, list[Any]] = {}
    _run(JobId("map_partitions", transaction_id, record_in), df_or_rdd, function, datasources, yields)
    return [each for partition in sorted(yields) for each in yields[partition]]


def _run(
    job_id: JobId,
    df_or_rdd: Any,
    function: Callable[[Iterator[Any]], object],
    datasources: Iterable[str | Path | DataSource] | None,
    yields: dict[int, list[Any]] | None = None,
) -> PartitionsReport:
    """One job of the ambient transaction, called by one who is called by the user; its yields, where wanted."""
    transaction, who = current(), f"{job_id.kind}()"
    if transaction is None or transaction.ended:
        raise ProgrammingError(
            f"{who} is a part of a transaction, and there is none here: write `with txpool.transaction():` around it"
        )
    transaction.require_active()
    transaction.adopt((), late_branches=False)  # which needs a decision log: better said before the job than after it
    context = context_of(df_or_rdd, who)
    warn_of_risks(context, df_or_rdd, stacklevel=4)
    passed = [find(target) for target in datasources or ()]
    everything = datasources_for(passed, function)
    luggage = TaskDatasources.pack(passed, everything)
    for datasource in passed:
        datasource.branch_recovery()  # which is an error for one that cannot prepare
    number = next_number(transaction)
    with (
        claimed(transaction, job_id, df_or_rdd, function) as claim,
        TaggedJob(context, f"{transaction.gtrid}/{number}") as job,
    ):
        if yields is not None:
            claim.require_new()
        if claim.earlier is not None:
            partitions = claim.earlier.partitions or 0
            return PartitionsReport(transaction.gtrid, number, partitions, 0, 0, done_by=claim.earlier.gtrid)
        transaction.on_cancel(job.cancel)
        # To find a DataFrame's RDD, Spark may run jobs of its own.
        rdd: Any = df_or_rdd if isinstance(df_or_rdd, RDD) else df_or_rdd.rdd
        partitions = rdd.getNumPartitions()
        claim.finish(partitions)
        if not partitions:
            return PartitionsReport(transaction.gtrid, number, partitions=0, attempts=0, branches=0)
        for datasource in passed:
            kept = reserve(datasource, partitions, transaction.gtrid)
            transaction.after_completion(lambda _, kept=kept: kept.release())  # type: ignore[misc]
        able = {it.name: it for it in everything.values() if it.role is Role.PREPARED and it.name in luggage.settings}
        places = note_locations(transaction.log, passed, [it for it in able.values() if it not in passed])
        yielding = yields is not None
        task = PartitionTask(transaction.gtrid, number, partitions, function, luggage, places, yielding=yielding)

        def collect() -> list[dict[str, Any]]:
            packed: list[dict[str, Any]] = rdd.mapPartitionsWithIndex(task).collect()
            if yields is not None:  # unpickled here, since to fail at it dooms the transaction
                yields.update((each["partition"], unpickled(each.pop("yields"))) for each in packed)
            return packed

        done = SparkWrite(transaction, number, job, able, adoptable=not yielding).run(partitions, collect)
        return PartitionsReport(transaction.gtrid, number, partitions, done.attempts, done.branches)
