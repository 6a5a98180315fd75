"""What a coordinator is given, and what it gives back: a global transaction's parts, and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from txpool.resources.base import Answer, Branch, MarkedBranch, OpenBranch


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
class Unit:
    """What one global transaction consists of when its commit begins."""

    gtrid: str
    branches: list[OpenBranch] = field(default_factory=list)
    #: Branches that a subordinate transaction has prepared elsewhere: they always get a decision.
    adopted: Sequence[Branch] = ()
    marked: MarkedBranch | None = None
    #: The last resource: committed, without a mark, once all others have prepared. Not safe over a crash just there.
    last: OpenBranch | None = None
    #: Something of this gtrid may still appear (a Spark attempt that nobody has heard of).
    loose_ends: bool = False
    #: Why it must not commit (timed out, rollback-only), asked once more just before the decision.
    doomed: Callable[[], BaseException | None] = lambda: None
    #: What is kept with the decision for people and for traces.
    remarks: Mapping[str, str] | None = None


@dataclass(slots=True)
class Result:
    """The outcome, and all that an error message or an operator wants to know of it."""

    outcome: Outcome
    gtrid: str
    answers: dict[str, Answer] = field(default_factory=dict)
    #: The first thing that went wrong.
    cause: BaseException | None = None
    #: A KeyboardInterrupt or its like that arrived on the way, to be raised again once the protocol has ended.
    interrupt: BaseException | None = None
    #: In doubt only: whether recovery, or a later attempt, can ever find the truth.
    knowable: bool = True
    #: The log has not been told yet what it may forget, or what is unaccounted for.
    untold: bool = False

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to do for a later attempt."""
        return self.outcome is not Outcome.IN_DOUBT and not self.untold

    @property
    def pending(self) -> list[str]:
        """The datasources that have not answered: recovery asks them again."""
        return [name for name, answer in self.answers.items() if answer is Answer.UNKNOWN]
