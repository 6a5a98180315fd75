"""What a branch counts as that is gone: the two last columns of the table in docs/explanation/a-branch-that-is-gone.md.

The coordinator asks it of its own branches, and recovery of those that a decision names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txpool.log.base import Heuristic
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.xid import Xid


def judged_absent(
    record: BranchRecord,
    decided: BranchOutcome,
    *,
    ended_by_another: bool,
    there: str | None = None,
    heuristics: Iterable[Heuristic] = (),
) -> BranchOutcome:
    """The outcome of a branch that is ABSENT, in a transaction that was decided so (COMMITTED or ROLLED_BACK).

    `ended_by_another` says that a command of somebody else may have ended it as decided. For the coordinator that is
    recovery, which fences its process before, or finds an abort record. It is asked after the branch's answer: before
    it, recovery may not have begun. For recovery it is any COMMIT before its own: it never knows that it is the first.
    If nobody else may have, a person has ended it, nobody knows how: LOST.

    `there` is the identity of the database whose listing lacks it, if it was listed, and `heuristics` what is recorded.
    """
    if not ended_by_another or not record.identity:
        return BranchOutcome.LOST
    if there is not None and there != record.identity:
        return BranchOutcome.UNKNOWN
    return _recorded(record.xid, heuristics) or decided


def judged_without_row(
    record: BranchRecord, is_decided: Callable[[], bool], heuristics: Callable[[], Iterable[Heuristic]]
) -> BranchOutcome:
    """The outcome of a branch that was to commit, is gone, and whose row is not there: it has rolled back.

    Another may have committed it, though, and deleted the row: then the decision was forgotten before. `is_decided` is
    called after the look for the row, and `heuristics` reads what the other has recorded before that.
    """
    if is_decided():
        return BranchOutcome.ROLLED_BACK
    return _recorded(record.xid, heuristics()) or BranchOutcome.COMMITTED


def _recorded(xid: Xid, heuristics: Iterable[Heuristic]) -> BranchOutcome | None:
    """How a branch has ended by its recorded heuristic outcome; None if there is none."""
    found = (each.ended for each in heuristics if (each.gtrid, each.bqual) == xid)
    return next(map(BranchOutcome, found), None)
