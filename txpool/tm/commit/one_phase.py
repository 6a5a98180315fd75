"""The commit of a single participant: its own COMMIT decides, so that there are no votes, no decision and no phases.

A transaction that has one participant ends by `commit_alone`. If others take part that have only read, the
coordinator commits the one that has written, in its phase ONE PHASE.
"""

from __future__ import annotations

from collections.abc import Callable

from txpool import failpoints
from txpool.resources.base import BranchOutcome, Participant
from txpool.tm.commit.request import COMMITTED, IN_DOUBT, Outcome, Result

_COMMITTED, _ROLLED_BACK = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK


def commit_participant(participant: Participant, result: Result) -> None:
    """Commit it, and note the outcome: after an exception that is in doubt, as after a lost answer.

    `result.resolvable` is false from before the COMMIT is sent: the caller makes it true once the outcome is certain.
    """
    result.outcome = IN_DOUBT
    result.resolvable = False
    answer = participant.commit_one_phase()
    if answer is _COMMITTED:
        result.outcome = COMMITTED
    else:
        if answer is _ROLLED_BACK:
            result.outcome = Outcome.ROLLED_BACK
        result.cause = getattr(participant, "failure", None)
    result.branch_outcomes[participant.datasource] = answer


def commit_alone(participant: Participant, result: Result, rollback_cause: Callable[[], BaseException | None]) -> None:
    """Commit the only participant of a transaction, and note the outcome.

    An exception: nothing was sent, and it must roll back; or, if the result says that something was (by
    `branch_outcomes`, or as not resolvable), an interrupt has come behind that.
    """
    if failpoints.armed:
        failpoints.hit("coordinator.begin")
    cause = rollback_cause()
    if cause is not None:
        raise cause
    if not participant.idle:
        # The handlers call nothing: so another interrupt cannot leave them, as if nothing had been sent.
        try:
            commit_participant(participant, result)
        except Exception as error:
            if result.resolvable:
                raise
            result.cause = error
        except BaseException as interrupt:
            if result.resolvable:
                raise
            result.cause = result.interrupt = interrupt
        if result.outcome is not IN_DOUBT:
            result.resolvable = True
