"""foreach_partition(): a Spark job whose tasks write through the ambient transaction of the driver."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import RDD, SparkContext

from txpool.datasource import DataSource, arrive, find
from txpool.errors import ConfigurationError, NotSupportedError, OperationalError, ProgrammingError
from txpool.manager import current, get_manager
from txpool.outcome import rolled_back
from txpool.resources.base import BranchRecord
from txpool.spark.attempts import Candidates, PartitionResult
from txpool.spark.listing import Listing, list_attempts, roll_back
from txpool.spark.monitor import Monitor
from txpool.spark.slots import require_slots
from txpool.spark.status import TaggedJob
from txpool.spark.task import PartitionTask
from txpool.spark.travel import Luggage, gather
from txpool.transaction import Transaction

logger = logging.getLogger("txpool")

_WRITES = "txpool.spark.writes"


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


def foreach_partition(
    df_or_rdd: Any,
    write: Callable[[Iterator[Any]], object],
    *,
    datasources: Iterable[str | Path | DataSource] | None = None,
) -> PartitionsReport:
    """Run `write(rows)` for every partition on the executors, as a part of the ambient transaction.

    Inside `write`, `txpool.connect(...)` joins the transaction; its datasources must be able to prepare (mode=xa).
    Tasks know those that this process has registered or opened, those of the coordinator's file, those that `write`
    mentions, and `datasources`; of the last it is checked first that they have a free prepared transaction for every
    partition. A file that only a task finds works as well, but what a lost task holds in it waits for recovery.

    Call it in the thread that began the transaction. Errors: ProgrammingError outside of a transaction or without a
    decision log; Spark's own where a task failed for good; OperationalError where too few prepared transactions are
    free, or what was prepared is gone. Once the job has begun, the transaction can only roll back after an error.
    """
    transaction = current()
    if transaction is None or transaction.ended:
        raise ProgrammingError(
            "foreach_partition() is a part of a transaction, and there is none here: "
            "write `with txpool.transaction():` around it"
        )
    transaction.require_active()
    transaction.adopt((), loose_ends=False)  # which needs a decision log: better said before the job than after it
    context = _context_of(df_or_rdd)
    _warn_of_local_log(context)
    passed = [find(target) for target in datasources or ()]
    everything = gather(passed, write)
    luggage = Luggage.pack(passed, everything)
    number = next(transaction.values.setdefault(_WRITES, itertools.count()))
    with TaggedJob(context, f"{transaction.gtrid}/{number}") as job:
        transaction.on_cancel(job.cancel)
        # To find a DataFrame's RDD, Spark may run jobs of its own.
        rdd = df_or_rdd if isinstance(df_or_rdd, RDD) else df_or_rdd.rdd
        partitions = rdd.getNumPartitions()
        if not partitions:
            return PartitionsReport(transaction.gtrid, number, partitions=0, attempts=0, branches=0)
        require_slots(passed, partitions, transaction.gtrid)
        task = PartitionTask(transaction.gtrid, number, partitions, write, luggage)
        able = {it.name: it for it in everything.values() if it.mode == "xa" and it.name in luggage.settings}
        return _Write(transaction, task, job, able).run(rdd)


class _Write:
    """One write of a transaction, on the driver."""

    def __init__(
        self, transaction: Transaction, task: PartitionTask, job: TaggedJob, datasources: dict[str, DataSource]
    ) -> None:
        self._transaction = transaction
        self._gtrid = transaction.gtrid
        self._number = task.write
        self._task = task
        self._job = job
        self._candidates = Candidates()
        #: By name: those that have travelled with the task, and later those that tasks have found by themselves.
        self._datasources = datasources

    def run(self, rdd: Any) -> PartitionsReport:
        """From here on something may be prepared."""
        try:
            watched = list(self._datasources.values())
            with Monitor(self._job, self._transaction, self._number, self._candidates, watched):
                packed = rdd.mapPartitionsWithIndex(self._task).collect()
            return self._take_over([PartitionResult.unpack(self._gtrid, result) for result in packed])
        except BaseException as error:
            self._give_up(error)
            raise

    def _take_over(self, results: list[PartitionResult]) -> PartitionsReport:
        """One attempt for each partition becomes the transaction's; the others can never win, and roll back."""
        used = {record.datasource: result for result in results for record in result.records}
        for name, result in used.items():
            self._load(name, result)
        attempts, all_succeeded = self._job.attempts()
        asked = used if all_succeeded else self._datasources
        listing = self._list(asked)
        for name in used:
            if name in listing.unreached:
                raise OperationalError(
                    f"{self._gtrid}: datasource {name} was used by a task and cannot be asked by the driver what is "
                    "prepared in it; the transaction rolls back, nothing of it stays"
                ) from listing.unreached[name]
        for result in results:
            for record in result.records:
                self._require_same_server(record, listing)
        winners = self._candidates.choose(self._gtrid, results, self._task.partitions, listing.attempts)
        winning = {result.attempt for result in results}
        roll_back((a for a in listing.attempts.values() if a.number not in winning), self._datasources.values())
        branches = [self._datasources[record.datasource].prepared_branch(record) for record in winners]
        self._transaction.adopt(branches, loose_ends=not all_succeeded)
        return PartitionsReport(self._gtrid, self._number, self._task.partitions, attempts, len(branches))

    def _load(self, name: str, result: PartitionResult) -> None:
        """A datasource that a task found by itself must be one that this process, and so recovery, can reach."""
        if name in self._datasources:
            return
        try:
            self._datasources[name] = arrive(result.settings[name])
        except Exception as error:
            raise ConfigurationError(
                f"{self._gtrid}: partition {result.partition} used datasource {name}, which cannot be loaded on the "
                f"driver: {error}. Pass it as foreach_partition(…, datasources=[…]). The transaction rolls back, "
                "nothing of it stays"
            ) from error
        logger.warning(
            "%s: only the tasks knew of datasource %s: pass it as foreach_partition(..., datasources=[...]), so that "
            "the driver can free what a lost task holds in it",
            self._gtrid,
            name,
        )

    def _list(self, names: Iterable[str]) -> Listing:
        return list_attempts([self._datasources[n] for n in names], gtrid=self._gtrid, write=self._number)

    def _require_same_server(self, record: BranchRecord, listing: Listing) -> None:
        here = listing.identities[record.datasource]
        if record.identity and here and record.identity != here:  # a server may hide its identity from a role
            raise ConfigurationError(
                f"{self._gtrid}: datasource {record.datasource} is one server for the tasks ({record.identity}) and "
                f"another for the driver ({here}): give both the same url. The transaction rolls back, nothing of it "
                "stays"
            )

    def _give_up(self, error: BaseException) -> None:
        """The transaction can only roll back, takes what is prepared with it, and leaves the rest to recovery."""
        what = f"Spark write {self._number} of {self._gtrid}"
        doom = rolled_back(self._gtrid, f"its Spark write {self._number} failed: {_first_line(error)}")
        doom.__cause__ = error
        self._transaction.set_rollback_only(doom)
        try:
            # Tasks that nobody has heard of may prepare later: recovery sweeps what appears once this has ended.
            self._transaction.adopt((), loose_ends=True)
            self._job.cancel(wait=True)
            listing = self._list(self._datasources)
            records = [record for attempt in listing.attempts.values() for record in attempt.records]
            branches = [self._datasources[record.datasource].prepared_branch(record) for record in records]
            self._transaction.adopt(branches, loose_ends=True)
        except Exception as another:
            logger.warning("%s: what its tasks have prepared is left to recovery: %s", what, another)
        error.add_note(f"{what} has failed: the transaction can only roll back, and nothing of it stays.")


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def _context_of(df_or_rdd: Any) -> SparkContext:
    if isinstance(df_or_rdd, RDD):
        return df_or_rdd.context
    if type(df_or_rdd).__module__.startswith("pyspark.sql.connect"):
        raise NotSupportedError(
            "foreach_partition() needs a driver of its own, and a Spark Connect DataFrame has none here: "
            "use a classic session (SparkSession.builder.master(…), or spark-submit). Nothing was done"
        )
    context: SparkContext = df_or_rdd.sparkSession.sparkContext
    return context


def _warn_of_local_log(context: SparkContext) -> None:
    """The sqlite log is a folder of the machine on which the driver runs, which may be another one tomorrow."""
    url = get_manager().settings.log_url or ""
    if url.startswith("sqlite:") and not str(context.master).startswith("local"):
        warnings.warn(
            f"the decision log {url} is a folder on this driver's machine, and the master is {context.master}: keep "
            "that folder, and run recovery on the same machine",
            stacklevel=3,
        )
