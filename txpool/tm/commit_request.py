"""What a coordinator is given, and what it gives back: a global transaction's parts, and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from txpool.resources.base import Branch, BranchOutcome, MarkedBranch, OpenBranch


class Outcome(Enum):
    """How a transaction ended, as far as its coordinator knows."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    IN_DOUBT = "in doubt"
    HEURISTIC_COMMIT = "heuristic commit"
    HEURISTIC_ROLLBACK = "heuristic rollback"
    HEURISTIC_MIXED = "heuristic mixed"
    HEURISTIC_HAZARD = "heuristic hazard"


@dataclass(slots=True)
class CommitRequest:
    """What one global transaction consists of when its commit begins."""

    gtrid: str
    branches: list[OpenBranch] = field(default_factory=list)
    #: Branches that a subordinate transaction has prepared elsewhere: they always get a decision.
    adopted: Sequence[Branch] = ()
    marked: MarkedBranch | None = None
    #: The last resource: committed, without a mark, once all others have prepared. Not safe over a crash just there.
    last: OpenBranch | None = None
    #: Something of this gtrid may still appear (a Spark attempt that nobody has heard of).
    late_branches: bool = False
    #: Why it must not commit (timed out, rollback-only), asked once more just before the decision.
    rollback_cause: Callable[[], BaseException | None] = lambda: None
    #: What is kept with the decision for people and for traces.
    annotations: Mapping[str, str] | None = None


@dataclass(slots=True)
class Result:
    """The outcome, and all that an error message or an operator wants to know of it."""

    outcome: Outcome
    gtrid: str
    branch_outcomes: dict[str, BranchOutcome] = field(default_factory=dict)
    #: The first thing that went wrong.
    cause: BaseException | None = None
    #: A KeyboardInterrupt or its like that arrived on the way, to be raised again once the protocol has ended.
    interrupt: BaseException | None = None
    #: In doubt only: whether recovery, or a later attempt, can ever find the truth.
    resolvable: bool = True
    #: The log has not been told yet what it may forget, or what is unaccounted for.
    unreported: bool = False

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to do for a later attempt."""
        return self.outcome is not Outcome.IN_DOUBT and not self.unreported

    @property
    def pending(self) -> list[str]:
        """The datasources that have not answered: recovery asks them again."""
        return [name for name, answer in self.branch_outcomes.items() if answer is BranchOutcome.UNKNOWN]
