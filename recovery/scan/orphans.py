"""Orphan filters: what is to become of a prepared branch that no decision stands for. They vote, as in Narayana.

One LEAVE_ALONE wins over any ROLLBACK, and no vote leaves the branch. The transaction log and the incarnations always
vote, so that no configuration can leave out what keeps a decision, or a living process, safe: `recovery.orphan-filters`
says who votes besides them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from recovery.scan.snapshot import CoordinatorState, Snapshot
from txpool.xid import Xid


class Vote(Enum):
    """What a filter wants to become of a branch."""

    ROLLBACK = "rollback"
    LEAVE_ALONE = "leave alone"


@dataclass(frozen=True, slots=True)
class Ballot:
    """A vote and its reason."""

    vote: Vote
    reason: str
    #: True where a branch that is left alone will not end by itself.
    alarm: bool = False


class OrphanFilter(Protocol):
    """Votes on one listed branch; None abstains. It must not do any I/O: the evidence is all there is."""

    def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None: ...


class TransactionLogFilter:
    """Leaves alone what is decided, and what somebody else than the log decides."""

    def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None:
        disputed = snapshot.disputed(xid.gtrid)
        if disputed:
            return Ballot(
                Vote.LEAVE_ALONE,
                f"its branches name different deciders ({disputed}), and the log says neither: nothing of it is ended. "
                "Somebody has prepared under a name of ours with a role that counts as ours: see who, by the owners "
                "that `txpool-recovery show` tells, and end by hand what is theirs",
                alarm=True,
            )
        marked = snapshot.marked_by(xid.gtrid)
        if marked is not None:
            return Ballot(Vote.LEAVE_ALONE, f"{marked} decides it")
        if xid.gtrid in snapshot.decisions:
            return Ballot(Vote.LEAVE_ALONE, "it is decided to commit")
        return None


class NodeFilter:
    """Rolls back what belongs to a node that is ours to recover."""

    def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None:
        return Ballot(Vote.ROLLBACK, f"node {xid.node} is ours") if xid.node in snapshot.nodes else None


_BY_STATE = {
    CoordinatorState.FENCED: Ballot(Vote.ROLLBACK, "its process is dead and was never to decide it"),
    CoordinatorState.FINISHED: Ballot(Vote.ROLLBACK, "its process has let go of it undecided"),
    CoordinatorState.ALIVE: Ballot(Vote.LEAVE_ALONE, "its process lives, and ends it"),
    CoordinatorState.OTHER_NODE: Ballot(Vote.LEAVE_ALONE, "its node is not ours"),
    CoordinatorState.DEAD: Ballot(Vote.LEAVE_ALONE, "its process is dead, and could not be fenced", alarm=True),
    CoordinatorState.UNKNOWN: Ballot(
        Vote.LEAVE_ALONE,
        "its incarnation is unknown to this log, which presumes nothing of it: recover it with the log that it was "
        "begun with. Only where that is lost, end it by hand: `txpool-recovery commit` where `show` has its decision; "
        "otherwise look first at the other databases of this gtrid, one of which may have committed, and only where "
        "none has, `txpool-recovery rollback`",
        alarm=True,
    ),
}


class SubordinateFilter:
    """Leaves alone what a Spark task has prepared while the transaction that it is part of lives, and says so."""

    def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None:
        task = xid.task
        if task is None or snapshot.coordinator_state(xid.gtrid) is not CoordinatorState.ALIVE:
            return None
        task_name = f"partition {task.partition}, attempt {task.attempt}"
        return Ballot(
            Vote.LEAVE_ALONE, f"it is the work of a Spark task ({task_name}), and its driver lives and decides it"
        )


class IncarnationFilter:
    """Leaves alone what a living process has not let go of, and what this log knows nothing of."""

    def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None:
        return _BY_STATE.get(snapshot.coordinator_state(xid.gtrid))


#: By their names in a configuration.
FILTERS: Mapping[str, Callable[[], OrphanFilter]] = {
    "transaction-log": TransactionLogFilter,
    "incarnation": IncarnationFilter,
    "node": NodeFilter,
    "subordinate": SubordinateFilter,
}


def all_filters(further: Iterable[OrphanFilter]) -> tuple[OrphanFilter, ...]:
    """All that vote: who says most comes first, and the two that nobody can leave out are there."""
    named = [voter for voter in further if type(voter) not in (TransactionLogFilter, IncarnationFilter)]
    return TransactionLogFilter(), *named, IncarnationFilter()


def poll(filters: Iterable[OrphanFilter], snapshot: Snapshot, xid: Xid) -> Ballot:
    """The outcome of the vote on a branch."""
    ballots = [ballot for voter in filters if (ballot := voter.vote(snapshot, xid)) is not None]
    left = [ballot for ballot in ballots if ballot.vote is Vote.LEAVE_ALONE]
    if left:
        return next((ballot for ballot in left if ballot.alarm), left[0])
    reasons = ", ".join(ballot.reason for ballot in ballots)
    return Ballot(Vote.ROLLBACK, reasons) if ballots else Ballot(Vote.LEAVE_ALONE, f"node {xid.node} is not ours")
