"""The phases of a commit."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """Where in the protocol a transaction stands."""

    PREPARE = "prepare"
    ONE_PHASE = "one-phase commit"
    DECIDE = "decide"
    RESOLVE = "resolve"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    COMPLETE = "complete"
    FORGET = "forget"
    IN_DOUBT = "in doubt"
    ENDED = "ended"

    @property
    def exported(self) -> str:
        """The name in metrics and traces, which is kept for those who look at them."""
        return _EXPORTED.get(self, self.name.lower())

    __hash__ = object.__hash__  # an Enum's own is a call of Python, and a phase is looked up at each step


# Names of their own: Python 3.11 calls a function for each `Phase.PREPARE`.
PREPARE, ONE_PHASE, DECIDE, RESOLVE, COMMIT, ROLLBACK, COMPLETE, FORGET, IN_DOUBT, ENDED = Phase

_EXPORTED = {Phase.RESOLVE: "establish", Phase.FORGET: "let_go"}
