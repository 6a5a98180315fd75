"""The input and the result of a coordinator: a transaction's branches, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf

from txpool.resources.base import Branch, BranchOutcome, MarkedBranch, OpenBranch
from txpool.tm.commit.progress import PhaseTwoProgress


class Outcome(Enum):
    """How a transaction ended, as far as its coordinator knows."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    IN_DOUBT = "in doubt"
    HEURISTIC_COMMIT = "heuristic commit"
    HEURISTIC_ROLLBACK = "heuristic rollback"
    HEURISTIC_MIXED = "heuristic mixed"
    HEURISTIC_HAZARD = "heuristic hazard"

    __hash__ = object.__hash__  # an Enum's own is a call of Python


# Names of their own: Python 3.11 calls a function for each `Outcome.COMMITTED`.
COMMITTED, IN_DOUBT = Outcome.COMMITTED, Outcome.IN_DOUBT
_UNKNOWN = BranchOutcome.UNKNOWN


@dataclass(slots=True)
class CommitRequest:
    """What one global transaction consists of when its commit begins."""

    gtrid: str
    #: By place of enlistment, which is a branch's number; None if something else has that place.
    branches: Sequence[OpenBranch | None] = ()
    #: Branches that subordinate transactions have prepared elsewhere: they always get a decision.
    adopted: Sequence[Branch] = ()
    marked: MarkedBranch | None = None
    #: The last resource: committed, without a mark, once all others have prepared. Not safe if a crash comes then.
    last: OpenBranch | None = None
    #: Late branches of this gtrid may still appear prepared (of a Spark attempt that has not reported).
    late_branches: bool = False
    #: Returns why it must not commit (timed out, rollback-only), or None; called last just before the decision.
    rollback_cause: Callable[[], BaseException | None] = lambda: None
    #: Kept with the decision, for people and for traces.
    annotations: Mapping[str, str] | None = None
    #: In seconds; `inf` if it has none. The log keeps the largest one.
    timeout: float = inf
    #: Told of each end in phase two, if there are many.
    progress: PhaseTwoProgress | None = None


class Result:
    """The outcome, and its details for error messages and operators."""

    __slots__ = ("branch_outcomes", "cause", "gtrid", "interrupt", "outcome", "recorded", "resolvable", "unreported")

    def __init__(self, outcome: Outcome, gtrid: str) -> None:
        self.outcome = outcome
        self.gtrid = gtrid
        #: By datasource.
        self.branch_outcomes: dict[str, BranchOutcome] = {}
        #: The first error.
        self.cause: BaseException | None = None
        #: A KeyboardInterrupt or its like that arrived on the way, to be raised again once the protocol has ended.
        self.interrupt: BaseException | None = None
        #: In doubt only: whether recovery, or a later attempt, can ever find out whether it has committed.
        self.resolvable = True
        #: The log has a record of its heuristic outcome, for people.
        self.recorded = False
        #: The log must still be told to forget the decision, or that something is unaccounted for.
        self.unreported = False

    @property
    def complete(self) -> bool:
        """Whether no later attempt is needed."""
        return self.outcome is not IN_DOUBT and not self.unreported

    @property
    def pending(self) -> Sequence[str]:
        """The datasources whose branch outcome is unknown: recovery finishes them."""
        if _UNKNOWN not in self.branch_outcomes.values():
            return ()
        return [name for name, outcome in self.branch_outcomes.items() if outcome is _UNKNOWN]
