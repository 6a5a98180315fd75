"""Which attempts of a Spark write may win: one for each partition, and none that was struck.

Names alone tell all that is needed: a branch carries its partition, its task attempt, and how many branches that
attempt has. So an attempt is complete when the databases list as many as its name says, whoever prepared them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txpool.errors import OperationalError
from txpool.resources.base import BranchRecord, decode, encode


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the databases list of one task attempt."""

    partition: int
    #: Spark's taskAttemptId, unique within a SparkContext.
    number: int
    records: tuple[BranchRecord, ...]

    @property
    def complete(self) -> bool:
        """Whether everything that it worked on is prepared."""
        task = self.records[0].xid.task
        return task is not None and len(self.records) == task.branches


def attempts_of(records: Iterable[BranchRecord], *, gtrid: str, write: int) -> dict[int, Attempt]:
    """The attempts of one write among all that is listed, by their number."""
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
    """What a task hands back: the attempt that stands for its partition, its own or an earlier one's."""

    partition: int
    attempt: int
    records: tuple[BranchRecord, ...]
    #: The settings of the datasources that it used, references unresolved.
    settings: Mapping[str, Mapping[str, Any]]
    #: Rows and bytes of the partition, where its task counts them.
    size: tuple[int, int] = (0, 0)
    #: What its function has yielded, pickled, where that is wanted.
    yields: bytes | None = None

    def pack(self) -> dict[str, Any]:
        """Plain data, which is all that travels."""
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
        """What `pack` made, on the driver."""
        records = decode(gtrid, packed["branches"])
        rows, size = packed["size"]
        return cls(packed["partition"], packed["attempt"], records, packed["settings"], (rows, size))


class Candidates:
    """The attempts that may still win. Used by the monitor's thread, and after its end by the driver's."""

    def __init__(self, *, adoptable: bool = True) -> None:
        """Without `adoptable` no retry adopts: what an attempt has reported is a part of its work, and lost with it."""
        self._adoptable = adoptable
        self.struck: set[int] = set()

    def strike(
        self,
        listed: Mapping[int, Attempt],
        *,
        ended: Collection[int],
        stuck: Collection[int] = (),
        partial: bool = False,
    ) -> list[Attempt]:
        """Strike whatever would keep a retry waiting for ever, and return all struck attempts that are listed.

        `ended` are the attempts that Spark gave up. Such a one is struck where nobody adopts any, where it is
        incomplete, since nobody can adopt that, or where its partition is `stuck`: a retry has been running for so long
        that it did not adopt it. In a `partial` listing nothing looks incomplete for certain.
        """
        for attempt in listed.values():
            hopeless = not self._adoptable or (not attempt.complete and not partial)
            if attempt.number in ended and (hopeless or attempt.partition in stuck):
                self.struck.add(attempt.number)
        return [attempt for attempt in listed.values() if attempt.number in self.struck]

    def choose(
        self, gtrid: str, results: Iterable[PartitionResult], listed: Mapping[int, Attempt]
    ) -> list[BranchRecord]:
        """The branches of the winners; OperationalError where a partition's winner does not stand prepared."""
        winners: list[BranchRecord] = []
        for result in results:
            there = listed[result.attempt].records if result.attempt in listed else ()
            gone = {record.xid for record in result.records} - {record.xid for record in there}
            if result.attempt in self.struck or gone:
                where = ", ".join(sorted({r.datasource for r in result.records if r.xid in gone})) or "any database"
                raise OperationalError(
                    f"{gtrid}: attempt {result.attempt} of partition {result.partition} reported its work prepared, "
                    f"and it is not any more in {where}: Spark had given that attempt up, and it was rolled back so "
                    "that a later one need not wait for its locks. The transaction rolls back, and nothing that was "
                    "done within it stays: do it again."
                )
            winners += result.records
        return winners


def require_all(gtrid: str, results: Sequence[PartitionResult], partitions: int) -> None:
    """One result for each partition; OperationalError otherwise."""
    missing = sorted(set(range(partitions)) - {result.partition for result in results})
    if missing or len(results) != partitions:
        raise OperationalError(
            f"{gtrid}: Spark returned {len(results)} results for {partitions} partitions (none for {missing}); "
            "it rolls back, and nothing that was done within it stays"
        )


def earlier_attempt(listed: Mapping[int, Attempt], partition: int) -> Attempt | None:
    """A complete attempt of a partition, for a later attempt to adopt; any is as good as another."""
    complete = [a for a in listed.values() if a.partition == partition and a.complete]
    return min(complete, key=lambda attempt: attempt.number, default=None)
