"""Phase two of several branches: each is started, then each is awaited, so that their databases work at the same time.

A branch whose step fails is left to recovery, and stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from txpool import failpoints
from txpool.resources.base import Branch, BranchOutcome, MarkedBranch
from txpool.tm.commit.progress import PhaseTwoProgress

_COMMITTED = BranchOutcome.COMMITTED


def start_each(
    branches: Iterable[Branch], decided: BranchOutcome, failed: Callable[[BaseException], object]
) -> list[Branch]:
    """Start to commit or roll back each branch, as decided; returns those for which that succeeded.

    Calls `failed` with the errors of the others.
    """
    started = []
    for branch in branches:
        try:
            if decided is _COMMITTED:
                branch.start_commit()
            else:
                branch.start_rollback()
        except BaseException as error:
            failed(error)
        else:
            started.append(branch)
    return started


def await_each(
    started: Collection[Branch],
    decided: BranchOutcome,
    outcomes: dict[Branch | MarkedBranch, BranchOutcome],
    failed: Callable[[BaseException], object],
    progress: PhaseTwoProgress | None = None,
) -> None:
    """Note in `outcomes` how each branch has ended. If awaiting it fails, what stands there stays: UNKNOWN."""
    if progress is not None:
        progress.total = len(started)
    for branch in started:
        try:
            outcome = branch.await_commit() if decided is _COMMITTED else branch.await_rollback()
            outcomes[branch] = outcome
            if progress is not None:
                progress.one_ended()
        except BaseException as error:
            failed(error)
        else:
            if failpoints.armed and outcome is _COMMITTED:
                failpoints.hit("coordinator.one-committed")
