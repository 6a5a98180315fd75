"""The statuses of a transaction, and which status follows from which outcome."""

from __future__ import annotations

from enum import Enum

from txpool.tm.commit_request import Outcome


class Status(Enum):
    """JTA's statuses of a transaction."""

    ACTIVE = "active"
    MARKED_ROLLBACK = "marked rollback-only"
    COMMITTING = "committing"  #: from the call of commit() on: preparing, deciding, committing
    COMMITTED = "committed"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"
    PREPARED = "prepared"  #: the end of a subordinate transaction: its coordinator decides
    IN_DOUBT = "in doubt"
    HEURISTIC = "heuristic"  #: some of it committed and some not, or that is not known


# Names of their own: Python 3.11 calls a function for each `Status.ACTIVE`.
ACTIVE, COMMITTING = Status.ACTIVE, Status.COMMITTING
#: Those in which it has not ended.
OPEN = (Status.ACTIVE, Status.MARKED_ROLLBACK)
#: Those after which its connections are given back.
UNDER_WAY = (*OPEN, Status.COMMITTING, Status.ROLLING_BACK)

_STATUS = {
    Outcome.COMMITTED: Status.COMMITTED,
    Outcome.ROLLED_BACK: Status.ROLLED_BACK,
    Outcome.IN_DOUBT: Status.IN_DOUBT,
    Outcome.HEURISTIC_ROLLBACK: Status.ROLLED_BACK,
    Outcome.HEURISTIC_COMMIT: Status.COMMITTED,
}


def status_of(outcome: Outcome) -> Status:
    """The status of a transaction that has ended so."""
    return _STATUS.get(outcome) or Status.HEURISTIC
