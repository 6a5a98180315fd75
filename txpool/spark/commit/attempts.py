"""Chooses the task attempts of a Spark write that the transaction adopts, one for each partition.

The Xid of a branch carries its partition, its task attempt, and the number of branches of that attempt. An attempt is
complete when the databases list that number of branches. If a branch is named before its first statement (MariaDB,
MySQL), the number is not known yet, and the name has 0: such an attempt is never complete, and no retry adopts it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txpool.errors import ConfigurationError, OperationalError
from txpool.resources.base import BranchRecord, decode, encode

_REFUSED = "refused"
#: Why an attempt is no longer prepared.
_GIVEN_UP = (
    "Spark had given up that attempt, and it was rolled back so that a later attempt did not have to wait for its locks"
)
_ENDED = (
    "recovery has ended it, if the log lost this process's lease meanwhile, as it does when its server fails over; or "
    "a person has, or the database has lost it"
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The prepared branches of one task attempt, as the databases list them."""

    partition: int
    #: Spark's taskAttemptId, unique within a SparkContext.
    number: int
    records: tuple[BranchRecord, ...]

    @property
    def complete(self) -> bool:
        """Whether all branches of the attempt are prepared."""
        return all(count == len(self.records) for count in self._counts)

    @property
    def countable(self) -> bool:
        """Whether it can ever be complete: not if a branch was named before anybody knew how many there will be."""
        return 0 not in self._counts

    @property
    def _counts(self) -> list[int]:
        """How many branches the attempt has, as each of their names says."""
        return [task.branches for record in self.records if (task := record.xid.task) is not None]


def attempts_of(records: Iterable[BranchRecord], *, gtrid: str, write: int) -> dict[int, Attempt]:
    """The attempts of one write among the listed branches, by attempt number."""
    found: dict[int, dict[str, BranchRecord]] = defaultdict(dict)
    partitions: dict[int, int] = {}
    for record in records:
        task = record.xid.task
        if record.xid.gtrid == gtrid and task is not None and task.write == write:
            found[task.attempt][record.xid.bqual] = record
            partitions[task.attempt] = task.partition
    return {number: Attempt(partitions[number], number, tuple(found[number].values())) for number in found}


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """What a task returns: the attempt to adopt for its partition, which is its own or an earlier one."""

    partition: int
    attempt: int
    records: tuple[BranchRecord, ...]
    #: The settings of the datasources that only the task knew, by name; references in them are unresolved.
    settings: Mapping[str, Mapping[str, Any]]
    #: Rows and bytes of the partition; (0, 0) if the task does not count them.
    size: tuple[int, int] = (0, 0)
    #: The pickled values that the user's function yielded; None if they are not collected.
    yields: bytes | None = None

    def pack(self) -> dict[str, Any]:
        """The result as plain data, for Spark to send to the driver."""
        packed = {
            "partition": self.partition,
            "attempt": self.attempt,
            "branches": encode(self.records),
            "settings": {name: dict(settings) for name, settings in self.settings.items()},
            "size": list(self.size),
        }
        return packed if self.yields is None else {**packed, "yields": self.yields}

    @classmethod
    def unpack(cls, gtrid: str, packed: Mapping[str, Any]) -> PartitionResult:
        """The result from what `pack` returned. Called on the driver. ConfigurationError for a refusal."""
        require_done(packed)
        records = decode(gtrid, packed["branches"])
        rows, size = packed["size"]
        return cls(packed["partition"], packed["attempt"], records, packed["settings"], (rows, size))


def refusal(error: ConfigurationError) -> dict[str, Any]:
    """What a task returns, packed, if its configuration is wrong: an exception would make Spark try it again."""
    return {_REFUSED: "\n".join([str(error), *getattr(error, "__notes__", ())])}


def require_done(packed: Mapping[str, Any]) -> None:
    """ConfigurationError if what a task has returned is a `refusal`. Called on the driver."""
    if _REFUSED in packed:
        raise ConfigurationError(packed[_REFUSED])


class Candidates:
    """Which attempts of a write can still be chosen. Used by the monitor's thread, and by the driver's after that."""

    def __init__(self, *, adoptable: bool = True) -> None:
        """Without `adoptable` no retry adopts an earlier attempt, because the yields of that attempt are lost."""
        self._adoptable = adoptable
        self.rejected: set[int] = set()

    def reject(
        self,
        listed: Mapping[int, Attempt],
        *,
        ended: Collection[int],
        stuck: Collection[int] = (),
        partial: bool = False,
    ) -> list[Attempt]:
        """Reject the attempts that would block a retry for ever, and return all rejected attempts that are listed.

        `ended` are the attempts that Spark has given up. One of them is rejected if retries do not adopt at all, if it
        is incomplete and therefore cannot be adopted, or if its partition is `stuck`: a retry of that partition has
        been running for so long that it has not adopted it. A `partial` listing lacks the branches of some databases,
        so no attempt counts as incomplete by it, unless its names say that it can never be complete.
        """
        for attempt in listed.values():
            incomplete = not attempt.countable or (not attempt.complete and not partial)
            unadoptable = not self._adoptable or incomplete
            if attempt.number in ended and (unadoptable or attempt.partition in stuck):
                self.rejected.add(attempt.number)
        return [attempt for attempt in listed.values() if attempt.number in self.rejected]

    def choose(
        self, gtrid: str, results: Iterable[PartitionResult], listed: Mapping[int, Attempt]
    ) -> list[BranchRecord]:
        """The branches of the chosen attempts. OperationalError if one of these attempts is no longer prepared."""
        chosen: list[BranchRecord] = []
        for result in results:
            prepared = listed[result.attempt].records if result.attempt in listed else ()
            missing = {record.xid for record in result.records} - {record.xid for record in prepared}
            given_up = result.attempt in self.rejected
            if given_up or missing:
                where = ", ".join(sorted({r.datasource for r in result.records if r.xid in missing})) or "any database"
                raise OperationalError(
                    f"{gtrid}: attempt {result.attempt} of partition {result.partition} reported that it had prepared "
                    f"its work, but the work is no longer prepared in {where}: {_GIVEN_UP if given_up else _ENDED}. "
                    "The transaction rolls back, and nothing that was done within it stays: do it again."
                )
            chosen += result.records
        return chosen


def require_all(gtrid: str, results: Sequence[PartitionResult], partitions: int) -> None:
    """OperationalError unless there is one result for each partition."""
    missing = sorted(set(range(partitions)) - {result.partition for result in results})
    if missing or len(results) != partitions:
        raise OperationalError(
            f"{gtrid}: Spark returned {len(results)} results for {partitions} partitions (none for {missing}); "
            "the transaction rolls back, and nothing that was done within it stays"
        )


def earlier_attempt(listed: Mapping[int, Attempt], partition: int) -> Attempt | None:
    """A complete attempt of a partition, for a later attempt to adopt; None if there is none."""
    complete = [a for a in listed.values() if a.partition == partition and a.complete]
    return min(complete, key=lambda attempt: attempt.number, default=None)
