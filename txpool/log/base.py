"""The decision log's one protocol, the same for every store.

Presumed abort: no record, no commit. A fence and a decision of one incarnation are ordered by the store itself.
Reading is not resolving: a row that a dead process wrote but never synced is readable and may vanish with the power,
so recovery makes a durable write (its fence is one) before it acts on what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from txpool.resources.base import BranchRecord, DecisionStore, PrepareLocation, Resolution

if TYPE_CHECKING:
    from txpool.log.locations import LocationNote


@dataclass(frozen=True, slots=True)
class Decision:
    """The durable record "this gtrid commits, with these branches"."""

    gtrid: str
    branches: tuple[BranchRecord, ...]
    #: Wall-clock seconds when it was made, for people only: nothing is inferred from age.
    recorded_at: float = 0.0


class IncarnationState(Enum):
    """What the registry knows of an incarnation."""

    ALIVE = "alive"  #: it holds its lock or lease
    DEAD = "dead"  #: nobody holds it, and it may be fenced
    FENCED = "fenced"  #: it can decide nothing any more


@dataclass(frozen=True, slots=True)
class Heuristic:
    """A branch that ended otherwise than its transaction was decided; kept until an operator forgets it."""

    gtrid: str
    bqual: str
    datasource: str
    decided: str  #: "commit" or "rollback"
    ended: str  #: a BranchOutcome's value
    noted: float = 0.0

    @property
    def end(self) -> str:
        """How the branch has ended, in words that follow its name."""
        return "is lost: nothing shows how it ended" if self.ended == "lost" else f"has ended {self.ended}"


@dataclass(frozen=True, slots=True)
class SideRecord:
    """What the log keeps beside the decisions, by kind and name: for people, and for recovery between two runs."""

    kind: str
    name: str
    text: str
    recorded_at: float = 0.0  #: wall-clock seconds


#: The kind of side record that says how each datasource ended a transaction that has a heuristic outcome.
ENDS = "ends"


def resolution_of(first: str | None) -> Resolution:
    """What is kept under a gtrid's key, by the first character of its branches; None if there are none."""
    if first is None:
        return Resolution.ABORTED
    return Resolution.NOTED if first == "{" else Resolution.COMMITTED


class DecisionLog(DecisionStore, Protocol):
    """A durable store of decisions, fences and finished marks. Thread-safe. Errors: LogError (definite), LogUnknown.

    `record` raises Refused when the incarnation that named the gtrid is fenced or unknown here, or the gtrid is
    aborted; `abort` returns COMMITTED if it met the decision, and NOTED if it met the note of a last resource.
    These three have one key, so that they exclude each other. `record` takes the note's place.
    """

    @property
    def node(self) -> str: ...

    @property
    def incarnation(self) -> str:
        """This process's own incarnation, registered on first use. Once it is fenced, a new one replaces it."""

    def nodes(self) -> frozenset[str]:
        """The nodes that we recover: `incarnations`, `fence` and `locations` know only theirs."""

    @property
    def every_node(self) -> bool:
        """Whether all nodes that share the log are ours to recover, those that it does not know included."""

    def note_location(self, location: PrepareLocation) -> None:
        """Note durably that this node prepares there; no I/O if this process has noted it before."""

    def note_decider(self, location: PrepareLocation) -> None:
        """Note durably the file of a marked datasource that decides; no I/O if this process has noted it before."""

    def deciders(self) -> list[LocationNote]:
        """The marked datasources that decide for our nodes, or have decided: a help to find their files."""

    def locations(self) -> list[LocationNote]:
        """Where our nodes prepare, or have prepared."""

    def retire_locations(self, notes: Iterable[LocationNote]) -> None:
        """Drop these notes durably, each only if nobody has written it again since it was read."""

    def incarnations_noting(self) -> set[str]:
        """The incarnations that note where they prepare. Branches of others may be where there is no note."""

    def note_timeout(self, gtrid: str, timeout: float) -> None:
        """Note durably that a transaction has this timeout, in seconds, or none (`inf`): before its first PREPARE.

        No I/O if this process has noted one that is as large.
        """

    def timeouts(self) -> dict[str, float]:
        """By incarnation: the largest timeout that is noted, in seconds; `inf` if there was none."""

    def retire_timeouts(self) -> None:
        """Delete the notes of timeouts of incarnations that have expired."""

    def point(self, gtrid: str, datasource: str) -> None:
        """Note durably that this marked datasource decides the gtrid; Refused when fenced, or aborted here."""

    def note_last(self, gtrid: str, datasource: str) -> None:
        """Note durably that a last resource commits before the decision of the gtrid; Refused as `record`."""

    def last_resources(self) -> dict[str, str]:
        """By gtrid, if no decision was made yet: the datasource of the last resource."""

    def abort_noted(self, gtrid: str) -> Resolution:
        """As `abort`, also in the place of a note: for its coordinator, and for a person, since the last resource may
        have committed.
        """

    def fence(self, incarnation: str) -> None:
        """Durably: this incarnation decides nothing any more. A second fence makes a durable write again.

        LogError for an incarnation that this log never registered: its branches are another log's.
        """

    def is_fenced(self, incarnation: str) -> bool: ...

    def finish(self, gtrid: str) -> None:
        """Write a finished mark: its coordinator is done with the gtrid while something is unaccounted for."""

    def finished(self) -> set[str]: ...

    def decisions(self) -> Mapping[str, Decision]:
        """By gtrid, each read once. Very many are packed (`txpool.packed`)."""

    def aborted(self) -> set[str]:
        """The gtrids that have an abort record."""

    def pointers(self) -> dict[str, str]: ...

    def incarnations(self) -> dict[str, IncarnationState]:
        """Every incarnation that our nodes have registered in this log, with its state tested now."""

    def record_heuristic(self, *heuristics: Heuristic) -> None:
        """Keep heuristic outcomes until an operator forgets them; recording one again changes nothing.

        After an error some of them may be kept.
        """

    def heuristics(self) -> list[Heuristic]: ...

    def dismiss_heuristics(self, gtrid: str, bqual: str | None = None) -> None:
        """Forget the heuristic outcomes of a gtrid, or that of one branch."""

    def purge(self, gtrids: Iterable[str]) -> None:
        """Delete all that is kept of these gtrids but their heuristic outcomes, durably, at once."""

    def expire(self, incarnations: Iterable[str]) -> None:
        """Move fenced incarnations from `incarnations` to `expired`, durably; others stay.

        For `record`, `point` and `is_fenced` they are fenced as before. `fence` moves one back.
        """

    def expired(self, incarnations: Iterable[str] | None = None) -> set[str]:
        """The expired incarnations of our nodes: those among the given names, or all."""

    def put_record(self, *records: SideRecord) -> None:
        """Keep side records durably; each replaces one of its kind and name. After an error some may be kept."""

    def side_records(self, kind: str) -> list[SideRecord]:
        """The side records of a kind, oldest first."""

    def delete_records(self, kind: str, names: Iterable[str]) -> None:
        """Delete side records durably; missing ones are no error."""

    def delete_unchanged(self, records: Iterable[SideRecord]) -> None:
        """Delete side records durably, each only if its time is still the given one: it was not written again."""

    def close(self) -> None:
        """Write what was lazily forgotten, and release the incarnation's lock."""
