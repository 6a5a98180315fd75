"""The decision log's one protocol, the same for every store.

Presumed abort: no record, no commit. A fence and a decision of one incarnation are ordered by the store itself.
Reading is not resolving: a row that a dead process wrote but never synced is readable and may vanish with the power,
so recovery makes a durable write (its fence is one) before it acts on what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from txpool.resources.base import BranchRecord, DecisionStore, PrepareLocation

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
    """A branch that ended otherwise than its transaction was decided, kept until somebody forgets it."""

    gtrid: str
    bqual: str
    datasource: str
    decided: str  #: "commit" or "rollback"
    ended: str  #: an Answer's value
    noted: float = 0.0


@dataclass(frozen=True, slots=True)
class SideRecord:
    """What is kept beside the decisions, by kind and name: for people, for recovery between two runs, and its notes."""

    kind: str
    name: str
    text: str
    recorded_at: float = 0.0  #: wall-clock seconds


#: The kind of memo that says how each database has ended a transaction of which one has ended otherwise than decided.
ENDS = "ends"


class DecisionLog(DecisionStore, Protocol):
    """A durable store of decisions, fences and marks. Thread-safe. Errors: LogError (definite), LogUnknown.

    `record` raises Refused when the incarnation that named the gtrid is fenced or unknown here, or the gtrid is
    aborted; `abort` returns COMMITTED where it met the decision.
    """

    @property
    def node(self) -> str: ...

    @property
    def incarnation(self) -> str:
        """This process's own incarnation, registered on first use; a fenced one is replaced before it goes on."""

    def nodes(self) -> frozenset[str]:
        """Those that are ours to recover: `incarnations`, `fence` and `sites` know theirs alone."""

    def note_location(self, site: PrepareLocation) -> None:
        """Note durably that this node prepares there; costs nothing where this process has done so before."""

    def locations(self) -> list[LocationNote]:
        """Where our nodes prepare, or have prepared."""

    def retire_locations(self, notes: Iterable[LocationNote]) -> None:
        """Drop these notes durably."""

    def incarnations_noting(self) -> set[str]:
        """The incarnations that note where they prepare; what others have prepared may lie where no note is."""

    def point(self, gtrid: str, datasource: str) -> None:
        """Note durably that this marked datasource decides the gtrid; Refused when fenced, or aborted here."""

    def fence(self, incarnation: str) -> None:
        """Durably: this incarnation decides nothing any more. A second fence makes a durable write again.

        LogError for an incarnation that this log never registered: its branches are another log's.
        """

    def is_fenced(self, incarnation: str) -> bool: ...

    def finish(self, gtrid: str) -> None:
        """Note durably that its coordinator has let go of the gtrid with something unaccounted for."""

    def finished(self) -> set[str]: ...

    def decisions(self) -> dict[str, Decision]: ...

    def aborted(self) -> set[str]:
        """The gtrids that have an abort record."""

    def pointers(self) -> dict[str, str]: ...

    def incarnations(self) -> dict[str, IncarnationState]:
        """Every incarnation that our nodes have ever registered in this log, with its life tested now."""

    def record_heuristic(self, heuristic: Heuristic) -> None:
        """Keep a heuristic outcome until it is forgotten by a person; noting it again changes nothing."""

    def heuristics(self) -> list[Heuristic]: ...

    def dismiss_heuristics(self, gtrid: str, bqual: str | None = None) -> None:
        """Forget the heuristic outcomes of a gtrid, or that of one branch."""

    def purge(self, gtrids: Iterable[str]) -> None:
        """Drop whatever is kept of these gtrids (decision, mark, pointer, abort record), durably, at once."""

    def expire(self, incarnations: Iterable[str]) -> None:
        """Move fenced incarnations out of `incarnations`, durably; what is not fenced stays.

        For `record`, `point` and `is_fenced` they are as before, and `fence` brings one back.
        """

    def expired(self, incarnations: Iterable[str] | None = None) -> set[str]:
        """Which of these, or of all, have expired, of our nodes."""

    def put_record(self, memo: SideRecord) -> None:
        """Keep a memo durably, in the place of one of its kind and name."""

    def side_records(self, kind: str) -> list[SideRecord]:
        """Those of a kind, oldest first."""

    def delete_records(self, kind: str, names: Iterable[str]) -> None:
        """Drop memos durably; what is not there needs no dropping."""

    def close(self) -> None:
        """Write what was lazily forgotten, and let go of the incarnation's lock."""
