"""Orphan filters: they vote on whether a prepared branch is an orphan and is rolled back, as in Narayana.

One LEAVE_ALONE outweighs every ROLLBACK, and a branch without votes is left alone. The filters `transaction-log` and
`incarnation` always vote, so that no configuration can endanger a decision or a living process.
`recovery.orphan-filters` names the other filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from recovery.scan.snapshot import CoordinatorState, Snapshot
from txpool.xid import Xid


class Vote(Enum):
    """What a filter wants to be done with a branch."""

    ROLLBACK = "rollback"
    LEAVE_ALONE = "leave alone"


@dataclass(frozen=True, slots=True)
class Ballot:
    """A vote and its reason."""

    vote: Vote
    reason: str
    #: True if the branch is left alone and will not end without a person's help.
    alarm: bool = False


class OrphanFilter(Protocol):
    """Votes on one listed branch; None abstains. It must not do any I/O: the snapshot has all that a vote may use.

    It has all of the branch's own transaction. If there are very many transactions, it has only some others.
    """

    def vote(self, snapshot: Snapshot, xid: Xid, /) -> Ballot | None: ...


class TransactionLogFilter:
    """Leaves alone branches of decided transactions, and of those that the log does not decide."""

    def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None:
        disputed = snapshot.disputed(xid.gtrid)
        if disputed:
            return Ballot(
                Vote.LEAVE_ALONE,
                f"the branches of this transaction name different deciders ({disputed}), and the log names none, so "
                "recovery ends none of them. Somebody has prepared under a name of ours, with a role that counts as "
                "ours: `txpool-recovery show` lists the owners. End the branches that are not ours in the database",
                alarm=True,
            )
        marked = snapshot.marked_by(xid.gtrid)
        if marked is not None:
            return Ballot(Vote.LEAVE_ALONE, f"{marked} decides it")
        if xid.gtrid in snapshot.decisions:
            return Ballot(Vote.LEAVE_ALONE, "it is decided to commit")
        return None


class NodeFilter:
    """Votes to roll back the branches of nodes that are ours to recover."""

    def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None:
        return Ballot(Vote.ROLLBACK, f"node {xid.node} is ours") if xid.node in snapshot.nodes else None


_BY_STATE = {
    CoordinatorState.FENCED: Ballot(Vote.ROLLBACK, "its process is dead, and has not decided it"),
    CoordinatorState.FINISHED: Ballot(Vote.ROLLBACK, "its process has finished with it undecided"),
    CoordinatorState.ABORTED: Ballot(Vote.ROLLBACK, "the log has an abort record, so that nobody can decide it"),
    CoordinatorState.ALIVE: Ballot(Vote.LEAVE_ALONE, "its process is alive and ends it"),
    CoordinatorState.OTHER_NODE: Ballot(Vote.LEAVE_ALONE, "its node is not ours to recover"),
    CoordinatorState.DEAD: Ballot(Vote.LEAVE_ALONE, "its process is dead and could not be fenced", alarm=True),
    CoordinatorState.UNKNOWN: Ballot(
        Vote.LEAVE_ALONE,
        "its incarnation is unknown to this log, so recovery presumes nothing. Recover it with the log that it was "
        "begun with. Only if that log is lost, end it by hand: by `txpool-recovery commit` if `show` has its decision. "
        "Otherwise look first at the other databases of this gtrid, since one of them may have committed. Only if none "
        "has, use `txpool-recovery rollback`",
        alarm=True,
    ),
}


_HANGS = Ballot(
    Vote.LEAVE_ALONE, "its process is alive, and has left it prepared for longer than its timeout", alarm=True
)


class SubordinateFilter:
    """Leaves alone the branches of a Spark task while the driver is alive, with a reason that names the task."""

    def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None:
        task = xid.task
        if task is None or snapshot.coordinator_state(xid.gtrid) is not CoordinatorState.ALIVE:
            return None
        task_name = f"partition {task.partition}, attempt {task.attempt}"
        return Ballot(
            Vote.LEAVE_ALONE, f"a Spark task ({task_name}) has prepared it, and the driver is alive and decides it"
        )


class IncarnationFilter:
    """Leaves alone branches that a living process will end, and those of unknown incarnations."""

    def vote(self, snapshot: Snapshot, xid: Xid) -> Ballot | None:
        return _HANGS if snapshot.hangs(xid.gtrid) else _BY_STATE.get(snapshot.coordinator_state(xid.gtrid))


#: The built-in filters, by their names in a configuration.
FILTERS: Mapping[str, Callable[[], OrphanFilter]] = {
    "transaction-log": TransactionLogFilter,
    "incarnation": IncarnationFilter,
    "node": NodeFilter,
    "subordinate": SubordinateFilter,
}


def all_filters(configured: Iterable[OrphanFilter]) -> tuple[OrphanFilter, ...]:
    """The configured filters and the two that always vote. The reason of an earlier filter is preferred."""
    named = [voter for voter in configured if type(voter) not in (TransactionLogFilter, IncarnationFilter)]
    return TransactionLogFilter(), *named, IncarnationFilter()


def poll(filters: Iterable[OrphanFilter], snapshot: Snapshot, xid: Xid) -> Ballot:
    """Let the filters vote on a branch, and return the outcome."""
    ballots = [ballot for voter in filters if (ballot := voter.vote(snapshot, xid)) is not None]
    left = [ballot for ballot in ballots if ballot.vote is Vote.LEAVE_ALONE]
    if left:
        return next((ballot for ballot in left if ballot.alarm), left[0])
    reasons = ", ".join(ballot.reason for ballot in ballots)
    return Ballot(Vote.ROLLBACK, reasons) if ballots else Ballot(Vote.LEAVE_ALONE, f"node {xid.node} is not ours")
