"""The statuses of a transaction, and which status follows from which outcome."""

from __future__ import annotations

from enum import Enum

from txpool.tm.commit.request import Outcome


class Status(Enum):
    """JTA's statuses of a transaction."""

    ACTIVE = "active"  #: work may be done in it
    MARKED_ROLLBACK = "marked rollback-only"  #: it can only roll back
    COMMITTING = "committing"  #: from the call of commit() on: preparing, deciding, committing
    COMMITTED = "committed"  #: it is decided to commit, also if a database has still to be reached
    ROLLING_BACK = "rolling back"  #: from the call of rollback(), or the failure of a block, on
    ROLLED_BACK = "rolled back"  #: nothing that was done within it stays
    PREPARED = "prepared"  #: the end of a subordinate transaction: its coordinator decides
    IN_DOUBT = "in doubt"  #: it is not known here yet how it ends
    HEURISTIC = "heuristic"  #: some of it committed and some not, or that is not known


# Names of their own: Python 3.11 calls a function for each `Status.ACTIVE`.
ACTIVE, MARKED_ROLLBACK, COMMITTING = Status.ACTIVE, Status.MARKED_ROLLBACK, Status.COMMITTING
#: Those in which it has not ended.
OPEN = (Status.ACTIVE, Status.MARKED_ROLLBACK)
#: Those after which its connections are given back.
UNDER_WAY = (*OPEN, Status.COMMITTING, Status.ROLLING_BACK)

#: The status of a transaction that has ended, by its outcome.
STATUS_OF = {
    Outcome.COMMITTED: Status.COMMITTED,
    Outcome.ROLLED_BACK: Status.ROLLED_BACK,
    Outcome.IN_DOUBT: Status.IN_DOUBT,
    Outcome.HEURISTIC_ROLLBACK: Status.ROLLED_BACK,
    Outcome.HEURISTIC_COMMIT: Status.COMMITTED,
    Outcome.HEURISTIC_MIXED: Status.HEURISTIC,
    Outcome.HEURISTIC_HAZARD: Status.HEURISTIC,
}
