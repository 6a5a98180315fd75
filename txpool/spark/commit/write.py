"""The driver's side of one Spark write: runs its job, adopts one attempt for each partition, rolls back the others."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txpool.datasource import DataSource, Source
from txpool.errors import ConfigurationError, OperationalError, TransactionRolledBack, described
from txpool.spark.commit.attempts import Candidates, PartitionResult, require_all
from txpool.spark.commit.listing import PreparedAttempts, list_attempts, require_same_server, roll_back
from txpool.spark.commit.monitor import AttemptMonitor
from txpool.spark.commit.self_deadlock import SelfDeadlockDetector
from txpool.spark.commit.status import TaggedJob
from txpool.tm.completion.outcome import rolled_back
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

_WRITES = "txpool.spark.writes"


@dataclass(frozen=True, slots=True)
class FinishedWrite:
    """A write whose branches the transaction has adopted."""

    #: One result for each partition.
    results: list[PartitionResult]
    #: Task attempts that Spark started.
    attempts: int
    branches: int


class WriteUndone(Exception):
    """The write has failed and was undone. The transaction may go on without it: no branch of the write can commit."""


class SparkWrite:
    """Runs one Spark write. Used by one thread, once."""

    def __init__(
        self,
        transaction: Transaction,
        number: int,
        job: TaggedJob,
        datasources: dict[str, Source],
        *,
        adoptable: bool = True,
        session_of: Callable[[str], Any] = lambda _: None,
    ) -> None:
        """`datasources` are those sent with the task. Without `adoptable` no retry adopts an earlier attempt.

        `session_of` returns a datasource's session that is open already, by its name, for what reads only, or None.
        """
        self._transaction = transaction
        self._gtrid = transaction.gtrid
        self._number = number
        self._job = job
        self._candidates = Candidates(adoptable=adoptable)
        #: By name: the datasources sent with the task, and later also those that only a task knew.
        self._datasources = datasources
        self._session_of = session_of

    def run(
        self,
        partitions: int,
        collect: Callable[[], Iterable[Mapping[str, Any]]],
        *,
        may_undo: Callable[[Exception], bool] = lambda _: False,
    ) -> FinishedWrite:
        """Run the job by `collect`, which returns the packed results of its tasks, and adopt their branches.

        After an error the transaction can only roll back, unless `may_undo` of the error is true: then the write is
        undone, and WriteUndone is raised.
        """
        try:
            watched = list(self._datasources.values())
            with (
                AttemptMonitor(self._job, self._transaction, self._number, self._candidates, watched),
                SelfDeadlockDetector(self._transaction, self._number, watched, self._job),
            ):
                packed = collect()
            return self._take_over(partitions, [PartitionResult.unpack(self._gtrid, result) for result in packed])
        except BaseException as error:
            if isinstance(error, Exception) and self._transaction.active and may_undo(error):
                self._undo()
                raise WriteUndone from error
            self._abandon(error)
            raise

    def _take_over(self, partitions: int, results: list[PartitionResult]) -> FinishedWrite:
        """Adopt one attempt for each partition, and roll back the others."""
        require_all(self._gtrid, results, partitions)
        used = {record.datasource: result for result in results for record in result.records}
        for name, result in used.items():
            self._load(name, result)
        attempts, all_succeeded = self._job.attempts()
        # A lost attempt may have worked in any datasource.
        to_list = used if all_succeeded else self._datasources
        branches = take_over(
            self._transaction,
            results,
            self._list_attempts(to_list),
            used,
            candidates=self._candidates,
            datasources=self._datasources,
        )
        self._transaction.adopt((), late_branches=not all_succeeded)
        return FinishedWrite(results, attempts, branches)

    def _load(self, name: str, result: PartitionResult) -> None:
        """Load a datasource that only a task knew, since this process has to commit there. ConfigurationError."""
        if name in self._datasources:
            return
        try:
            self._datasources[name] = DataSource.from_serialized(result.settings[name])
        except Exception as error:
            raise ConfigurationError(
                f"{self._gtrid}: partition {result.partition} used datasource {name}, which cannot be loaded on the "
                f"driver: {described(error)}. Pass it in datasources=[…]. The transaction rolls back, "
                "and nothing that was done within it stays"
            ) from error
        logger.warning(
            "%s: only the tasks knew of datasource %s: pass it in datasources=[...], so that "
            "the driver can free what a lost task holds in it",
            self._gtrid,
            name,
        )

    def _list_attempts(self, names: Iterable[str]) -> PreparedAttempts:
        names = list(names)
        sessions = {name: self._session_of(name) for name in names}
        return list_attempts(
            [self._datasources[name] for name in names], gtrid=self._gtrid, write=self._number, sessions=sessions
        )

    def _undo(self) -> None:
        """Roll back what the tasks have prepared. No attempt can be chosen any more, however late it prepares."""
        self._transaction.adopt((), late_branches=True)
        self._job.cancel(wait=True)
        roll_back(self._list_attempts(self._datasources).attempts.values(), self._datasources.values())

    def _abandon(self, error: BaseException) -> None:
        """Mark the transaction rollback-only, and adopt what is prepared, so that both roll back together."""
        what = f"Spark write {self._number} of {self._gtrid}"
        self._transaction.set_rollback_only(failed_write(self._gtrid, self._number, error))
        try:
            # Tasks that have reported nothing may prepare later. Recovery rolls those branches back after the end.
            self._transaction.adopt((), late_branches=True)
            self._job.cancel(wait=True)
            listing = self._list_attempts(self._datasources)
            records = [record for attempt in listing.attempts.values() for record in attempt.records]
            branches = [
                self._datasources[record.datasource].prepared_branch(record, self._transaction.deadlines)
                for record in records
            ]
            self._transaction.adopt(branches, late_branches=True)
        except Exception as another:
            logger.warning("%s: what its tasks have prepared is left to recovery: %s", what, another)
        error.add_note(f"{what} has failed: the transaction can only roll back, and nothing of the write stays.")


def take_over(
    transaction: Transaction,
    results: Sequence[PartitionResult],
    listing: PreparedAttempts,
    needed: Iterable[str],
    *,
    candidates: Candidates,
    datasources: Mapping[str, Source],
) -> int:
    """Adopt the branches of the chosen attempts, roll back all other attempts, and return the number of branches.

    OperationalError if one of the `needed` datasources did not answer, or a chosen attempt is no longer prepared.
    """
    for name in needed:
        if name in listing.unreachable:
            raise OperationalError(
                f"{transaction.gtrid}: a task used datasource {name}, and the driver cannot list what is prepared in "
                "it; the transaction rolls back, and nothing that was done within it stays"
            ) from listing.unreachable[name]
    for result in results:
        for record in result.records:
            require_same_server(record, listing)
    records = candidates.choose(transaction.gtrid, results, listing.attempts)
    chosen = {result.attempt for result in results}
    roll_back((each for each in listing.attempts.values() if each.number not in chosen), datasources.values())
    deadlines = transaction.deadlines
    transaction.adopt(
        [datasources[record.datasource].prepared_branch(record, deadlines) for record in records], late_branches=False
    )
    return len(records)


def failed_write(gtrid: str, number: int, error: BaseException | None = None) -> TransactionRolledBack:
    """The rollback cause of a transaction whose Spark write has failed, with the first line of the error."""
    why = "" if error is None else f": {described(error)}".splitlines()[0]
    cause = rolled_back(gtrid, f"its Spark write {number} failed{why}")
    cause.__cause__ = error
    return cause


def next_number(transaction: Transaction) -> int:
    """The number of the transaction's next Spark write, from 0."""
    return int(next(transaction.values.setdefault(_WRITES, itertools.count())))
