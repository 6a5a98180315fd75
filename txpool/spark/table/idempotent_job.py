"""A Spark job that has a name of the user's own: it is run once, as a part of the driver's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from txpool.datasource import find
from txpool.idempotency import UNKNOWN_FUNCTION, IdempotentWork, RecordIn, checked_id, name_of, require_both
from txpool.resources.records import EarlierRun
from txpool.spark.table.idempotent_write import fingerprint
from txpool.tm.transaction import Transaction

# What the records of jobs are for, where those of write_table() have a table, which has a dot in its name.
_TARGET = "partitions"


@dataclass(frozen=True, slots=True)
class JobClaim:
    """A job's name, which is the transaction's now, or was taken before; without one it is nobody's."""

    named: IdempotentWork | None = None
    #: The run that has done it, and nothing is to be done now.
    earlier: EarlierRun | None = None

    def finish(self, partitions: int) -> None:
        """Say in the record how many partitions it has."""
        if self.named is not None:
            with closing(self.named.source.connect()) as connection:
                self.named.finish(connection, partitions)

    def require_new(self) -> None:
        """AlreadyDone where an earlier run has done it."""
        if self.named is not None and self.earlier is not None:
            raise self.named.already_done(self.earlier)


@dataclass(frozen=True, slots=True)
class JobId:
    """What the user calls a job, and where that is recorded, if anything; and the job's kind."""

    kind: str
    transaction_id: str | None
    record_in: RecordIn | None


@contextmanager
def claimed(
    transaction: Transaction, job: JobId, df_or_rdd: Any, function: Callable[..., object]
) -> Iterator[JobClaim]:
    """Around a job that runs `function` for each partition: its name is taken within the ambient transaction.

    Without an id it does nothing. Whatever fails in the block dooms the transaction, which else could commit the name
    without the work. Other work is told by its kind, by the function's name (a lambda has none), and by what a
    DataFrame is made of; of an RDD nothing is known. Errors: as `Named.take`; ProgrammingError for what is no id, or
    without both; ConfigurationError as by connect().
    """
    if job.transaction_id is None and job.record_in is None:
        yield JobClaim()
        return
    require_both(job.transaction_id, job.record_in)
    digest = fingerprint(df_or_rdd) if isinstance(df_or_rdd, DataFrame) else UNKNOWN_FUNCTION
    plan = f"{name_of(function)} {digest}"
    source = find(job.record_in)  # type: ignore[arg-type]
    named = IdempotentWork(source, checked_id(job.transaction_id), _TARGET, transaction.gtrid, job.kind, plan)
    earlier = named.claim(transaction)
    if earlier is not None:
        yield JobClaim(named, earlier)
        return
    try:
        transaction.adopt((), late_branches=False)  # refused beside a datasource that must be alone: better now
        yield JobClaim(named)
    except BaseException as error:
        transaction.set_rollback_only(error)
        raise
