"""One write of a transaction, on the driver: which of its attempts win, and what becomes of the others."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txpool.datasource import DataSource, deserialized
from txpool.errors import ConfigurationError, OperationalError
from txpool.spark.commit.attempts import Candidates, PartitionResult, require_all
from txpool.spark.commit.listing import PreparedAttempts, list_attempts, require_same_server, roll_back
from txpool.spark.commit.monitor import AttemptMonitor
from txpool.spark.commit.self_deadlock import SelfDeadlockDetector
from txpool.spark.commit.status import TaggedJob
from txpool.tm.outcome import rolled_back
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

_WRITES = "txpool.spark.writes"


@dataclass(frozen=True, slots=True)
class FinishedWrite:
    """A write whose branches are the transaction's now."""

    #: One for each partition.
    results: list[PartitionResult]
    #: Task attempts that Spark started.
    attempts: int
    branches: int


class WriteUndone(Exception):
    """The write has failed, and the transaction can do without it: nothing of it can ever win."""


class SparkWrite:
    """From its job to its branches. Used by one thread, once."""

    def __init__(
        self,
        transaction: Transaction,
        number: int,
        job: TaggedJob,
        datasources: dict[str, DataSource],
        *,
        adoptable: bool = True,
    ) -> None:
        """Without `adoptable` none of its tasks adopts what an earlier attempt has prepared."""
        self._transaction = transaction
        self._gtrid = transaction.gtrid
        self._number = number
        self._job = job
        self._candidates = Candidates(adoptable=adoptable)
        #: By name: those that have travelled with the task, and later those that tasks have found by themselves.
        self._datasources = datasources

    def run(
        self,
        partitions: int,
        collect: Callable[[], Iterable[Mapping[str, Any]]],
        *,
        may_undo: Callable[[Exception], bool] = lambda _: False,
    ) -> FinishedWrite:
        """Run the job, which returns what its tasks have packed; from here on something may be prepared.

        An error dooms the transaction, but for one that is `forgiven`: that raises TakenBack.
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
            self._give_up(error)
            raise

    def _take_over(self, partitions: int, results: list[PartitionResult]) -> FinishedWrite:
        """One attempt for each partition becomes the transaction's; the others can never win, and roll back."""
        require_all(self._gtrid, results, partitions)
        used = {record.datasource: result for result in results for record in result.records}
        for name, result in used.items():
            self._load(name, result)
        attempts, all_succeeded = self._job.attempts()
        asked = used if all_succeeded else self._datasources
        branches = take_over(
            self._transaction,
            results,
            self._list_attempts(asked),
            used,
            candidates=self._candidates,
            datasources=self._datasources,
        )
        self._transaction.adopt((), late_branches=not all_succeeded)
        return FinishedWrite(results, attempts, branches)

    def _load(self, name: str, result: PartitionResult) -> None:
        """A datasource that a task found by itself must be one that this process, and so recovery, can reach."""
        if name in self._datasources:
            return
        try:
            self._datasources[name] = deserialized(result.settings[name])
        except Exception as error:
            raise ConfigurationError(
                f"{self._gtrid}: partition {result.partition} used datasource {name}, which cannot be loaded on the "
                f"driver: {error}. Pass it in datasources=[…]. The transaction rolls back, "
                "and nothing that was done within it stays"
            ) from error
        logger.warning(
            "%s: only the tasks knew of datasource %s: pass it in datasources=[...], so that "
            "the driver can free what a lost task holds in it",
            self._gtrid,
            name,
        )

    def _list_attempts(self, names: Iterable[str]) -> PreparedAttempts:
        return list_attempts([self._datasources[n] for n in names], gtrid=self._gtrid, write=self._number)

    def _undo(self) -> None:
        """Free what the tasks have prepared; none of it can win any more, whatever appears later."""
        self._transaction.adopt((), late_branches=True)
        self._job.cancel(wait=True)
        roll_back(self._list_attempts(self._datasources).attempts.values(), self._datasources.values())

    def _give_up(self, error: BaseException) -> None:
        """The transaction can only roll back, takes what is prepared with it, and leaves the rest to recovery."""
        what = f"Spark write {self._number} of {self._gtrid}"
        doom = rolled_back(self._gtrid, f"its Spark write {self._number} failed: {_first_line(error)}")
        doom.__cause__ = error
        self._transaction.set_rollback_only(doom)
        try:
            # Tasks that nobody has heard of may prepare later: recovery sweeps what appears once this has ended.
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
        error.add_note(f"{what} has failed: the transaction can only roll back, and nothing of it stays.")


def take_over(
    transaction: Transaction,
    results: Sequence[PartitionResult],
    listing: PreparedAttempts,
    needed: Iterable[str],
    *,
    candidates: Candidates,
    datasources: Mapping[str, DataSource],
) -> int:
    """The winners' branches become the transaction's, and their number is returned; other attempts can never win, and
    roll back. OperationalError where one of the `needed` datasources did not answer, or a winner is not prepared.
    """
    for name in needed:
        if name in listing.unreached:
            raise OperationalError(
                f"{transaction.gtrid}: datasource {name} was used by a task and cannot be asked by the driver what is "
                "prepared in it; the transaction rolls back, and nothing that was done within it stays"
            ) from listing.unreached[name]
    for result in results:
        for record in result.records:
            require_same_server(record, listing)
    winners = candidates.choose(transaction.gtrid, results, listing.attempts)
    winning = {result.attempt for result in results}
    roll_back((each for each in listing.attempts.values() if each.number not in winning), datasources.values())
    patience = transaction.deadlines
    transaction.adopt(
        [datasources[record.datasource].prepared_branch(record, patience) for record in winners], late_branches=False
    )
    return len(winners)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def next_number(transaction: Transaction) -> int:
    """The number of the transaction's next Spark write, from 0."""
    return int(next(transaction.values.setdefault(_WRITES, itertools.count())))
