"""Runs the job of foreach_partition() or map_partitions() only once under a transaction_id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from txpool.datasource import find
from txpool.idempotency.once import UNKNOWN_FUNCTION, IdempotentWork, RecordIn, checked_id, name_of, require_both
from txpool.resources.records import EarlierRun
from txpool.spark.table.idempotent_write import fingerprint
from txpool.tm.transaction import Transaction

# The target in records of jobs. Records of write_table() have a table there, whose full name has a dot.
_TARGET = "partitions"


@dataclass(frozen=True, slots=True)
class JobClaim:
    """The claim of a job on its transaction_id; without a transaction_id both fields are None."""

    work: IdempotentWork | None = None
    #: The committed run that has done the work already; None if it is to be done now.
    earlier: EarlierRun | None = None

    def finish(self, partitions: int) -> None:
        """Add the number of partitions to the record."""
        if self.work is not None:
            with closing(self.work.source.connect()) as connection:
                self.work.finish(connection, partitions)

    def require_new(self) -> None:
        """AlreadyDone if an earlier run has done the work."""
        if self.work is not None and self.earlier is not None:
            raise self.work.already_done(self.earlier)


@dataclass(frozen=True, slots=True)
class JobId:
    """The kind of a job, its transaction_id, and the datasource that records it."""

    kind: str
    transaction_id: str | None
    record_in: RecordIn | None


@contextmanager
def claim_job(
    transaction: Transaction, job: JobId, df_or_rdd: Any, function: Callable[..., object]
) -> Iterator[JobClaim]:
    """Claim the transaction_id of a job within the ambient transaction, for the length of the block that runs the job.

    Without a transaction_id this does nothing. An error in the block makes the transaction rollback-only, since it
    could otherwise commit the record without the work. Work counts as other work if its kind, the name of the function
    (a lambda has none) or the DataFrame's fingerprint differs; an RDD has no fingerprint. Errors: as
    `IdempotentWork.claim_within`; ProgrammingError for an invalid transaction_id, or if only one of both is given;
    ConfigurationError as by connect().
    """
    if job.transaction_id is None and job.record_in is None:
        yield JobClaim()
        return
    require_both(job.transaction_id, job.record_in)
    digest = fingerprint(df_or_rdd) if isinstance(df_or_rdd, DataFrame) else UNKNOWN_FUNCTION
    plan = f"{name_of(function)} {digest}"
    source = find(job.record_in)  # type: ignore[arg-type]
    work = IdempotentWork(source, checked_id(job.transaction_id), _TARGET, transaction.gtrid, job.kind, plan)
    earlier = work.claim_within(transaction)
    if earlier is not None:
        yield JobClaim(work, earlier)
        return
    try:
        transaction.adopt((), late_branches=False)  # raises before the job if the record's datasource must be alone
        yield JobClaim(work)
    except BaseException as error:
        transaction.set_rollback_only(error)
        raise
