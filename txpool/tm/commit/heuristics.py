"""Heuristic outcomes: branches that ended otherwise than their transaction was decided.

`outcome_of` says what they make of the transaction's outcome, `record_heuristics` what the log keeps of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import time

from txpool.log.base import ENDS, DecisionLog, Heuristic, SideRecord
from txpool.log.formats import pack
from txpool.resources.base import Branch, BranchOutcome, MarkedBranch
from txpool.tm.commit.annotations import NOTE
from txpool.tm.commit.request import CommitRequest, Outcome, Result


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
    # A marked branch has no name, and one that the user's own SQL ended early was never given one.
    named = {*prepared, *request.adopted}
    found = []
    for branch, outcome in heuristics.items():
        bqual = branch.record.xid.bqual if branch in named else ""
        found.append(Heuristic(request.gtrid, bqual, branch.datasource, verb, outcome.value))
    log.record_heuristic(*found)
    ends = {name: outcome.value for name, outcome in result.branch_outcomes.items()}
    log.put_record(SideRecord(ENDS, request.gtrid, pack(ends=ends), time()))
