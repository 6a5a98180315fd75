"""Heuristic outcomes: branches that ended otherwise than their transaction was decided.

`judged_absent` says whether a branch that is gone is one, `outcome_of` what they make of the transaction's outcome,
`record_heuristics` what the log keeps of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from time import time

from txpool.log.base import ENDS, DecisionLog, Heuristic, SideRecord
from txpool.log.formats import pack
from txpool.resources.base import Branch, BranchOutcome, BranchRecord, MarkedBranch
from txpool.tm.commit.annotations import NOTE
from txpool.tm.commit.request import CommitRequest, Outcome, Result
from txpool.xid import Xid


def judged_absent(
    branch: Branch | MarkedBranch,
    decided: BranchOutcome,
    left_to_recovery: Callable[[], bool],
    failed: Callable[[BaseException], object],
) -> BranchOutcome:
    """The outcome of a branch that the coordinator's own first command has not found, on the server that prepared it.

    Recovery may have ended it as decided, and before that it fences the coordinator's process, or an abort record keeps
    that from deciding. Otherwise somebody has ended it by hand, nobody knows how: LOST. So it is where
    `left_to_recovery` fails. That is called after the branch's answer: before it, recovery may not have begun.
    """
    try:
        ended_by_recovery = left_to_recovery()
    except BaseException as error:
        failed(error)
        ended_by_recovery = False
    proven = isinstance(record := getattr(branch, "record", None), BranchRecord) and record.identity != ""
    return decided if ended_by_recovery and proven else BranchOutcome.LOST


def judged_without_row(
    branch: Branch | MarkedBranch,
    completed_by_recovery: Callable[[], bool],
    heuristics: Callable[[], Iterable[Heuristic]],
    failed: Callable[[BaseException], object],
) -> BranchOutcome:
    """The outcome of a branch that was to commit, is gone, and whose row is not there: it has rolled back.

    Recovery may have committed it, though, and deleted the row: then it has completed the transaction before.
    `completed_by_recovery` is called after the look for the row, and `heuristics` reads what recovery has recorded
    before that. Where one fails, nobody knows: LOST.
    """
    try:
        if not completed_by_recovery():
            return BranchOutcome.ROLLED_BACK
        return recorded_outcome(branch.record.xid, heuristics()) or BranchOutcome.COMMITTED  # type: ignore[union-attr]
    except BaseException as error:
        failed(error)
        return BranchOutcome.LOST


def recorded_outcome(xid: Xid, heuristics: Iterable[Heuristic]) -> BranchOutcome | None:
    """How a branch has ended by its recorded heuristic outcome; None where there is none."""
    found = (each.ended for each in heuristics if (each.gtrid, each.bqual) == xid)
    return next(map(BranchOutcome, found), None)


def outcome_of(decided: BranchOutcome, branch_outcomes: Collection[BranchOutcome]) -> Outcome:
    """The outcome of a transaction that was decided so (COMMITTED or ROLLED_BACK), and whose branches ended so."""
    committed = decided is BranchOutcome.COMMITTED
    contrary = BranchOutcome.ROLLED_BACK if committed else BranchOutcome.COMMITTED
    if BranchOutcome.LOST in branch_outcomes:
        return Outcome.HEURISTIC_HAZARD
    if contrary not in branch_outcomes:
        return Outcome.COMMITTED if committed else Outcome.ROLLED_BACK
    if decided in branch_outcomes:
        return Outcome.HEURISTIC_MIXED
    return Outcome.HEURISTIC_ROLLBACK if committed else Outcome.HEURISTIC_COMMIT


def record_heuristics(
    log: DecisionLog,
    request: CommitRequest,
    result: Result,
    decided: BranchOutcome,
    heuristics: Mapping[Branch | MarkedBranch, BranchOutcome],
    *,
    prepared: Collection[Branch],
) -> None:
    """Keep these branches' outcomes in the log, with the transaction's note and how every datasource ended.

    `prepared` are the branches that this coordinator has named and prepared.
    """
    note = (request.annotations or {}).get(NOTE)
    if note:
        log.put_record(SideRecord(NOTE, request.gtrid, note, time()))
    verb = "commit" if decided is BranchOutcome.COMMITTED else "rollback"
    for branch, outcome in heuristics.items():
        # A marked branch has no name, and one that the user's own SQL ended early was never given one.
        named = branch in prepared or branch in request.adopted
        bqual = branch.record.xid.bqual if named else ""  # type: ignore[union-attr]
        log.record_heuristic(Heuristic(request.gtrid, bqual, branch.datasource, verb, outcome.value))
    ends = {name: outcome.value for name, outcome in result.branch_outcomes.items()}
    log.put_record(SideRecord(ENDS, request.gtrid, pack(ends=ends), time()))
