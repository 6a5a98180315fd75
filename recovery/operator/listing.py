"""Describes transactions in doubt for people: the state of each, and what recovery will do with it, and why."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from recovery.operator.audit import AuditEntry
from recovery.scan.datasources import RecoveryDatasources
from recovery.scan.saved import SavedDetails
from recovery.scan.snapshot import OTHER_DATABASE, CoordinatorState, Snapshot
from txpool.log.base import Heuristic, IncarnationState
from txpool.resources.base import BranchRecord
from txpool.tm.annotations import NOTE
from txpool.xid import Xid, split_gtrid


@dataclass(frozen=True, slots=True)
class BranchState:
    """One branch. `state` is "prepared", or why it is not known to be prepared ("no answer", …), or how it ended."""

    gid: str
    datasource: str
    state: str
    #: The role that prepared it; empty if it is not prepared, or if the server does not tell.
    owner: str = ""
    #: The error of the last attempt to end it; empty if there was none.
    error: str = ""


@dataclass(frozen=True, slots=True)
class InDoubt:
    """One transaction. `age` is in seconds, for people only: no outcome depends on it."""

    gtrid: str
    node: str
    incarnation: str
    #: The state of its process: a `CoordinatorState`'s value.
    standing: str
    age: float | None
    #: commit, rollback, undecided, or forgotten if no record tells any more.
    decision: str
    #: Where the decision is kept; empty if it is not kept anywhere.
    kept: str
    branches: tuple[BranchState, ...]
    #: What recovery will do next with the transaction, and why.
    next: str
    heuristics: tuple[Heuristic, ...] = ()
    #: Whether a person should look: False while its own living process or another node ends it.
    attention: bool = True
    #: The commands by hand that concern it, oldest first; only in `show`.
    history: tuple[AuditEntry, ...] = ()
    #: By datasource: how its branches ended, as far as known; only if one ended otherwise than decided.
    ends: dict[str, str] = field(default_factory=dict)
    #: The note of its program, which is kept with the decision; empty if there is none.
    note: str = ""

    @property
    def unresolved(self) -> bool:
        """Whether any of its branches may still be prepared. If not, only a record is left."""
        return any(branch.state in _UNRESOLVED for branch in self.branches)

    @property
    def ours(self) -> bool:
        """Whether its node is ours to recover. The names of other nodes' branches prove nothing."""
        return self.standing != CoordinatorState.OTHER_NODE.value

    @property
    def foreign(self) -> bool:
        """Whether all of its known branches were prepared by somebody else under a name of ours."""
        return bool(self.branches) and all(branch.state == FOREIGN for branch in self.branches)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def in_doubt(snapshot: Snapshot, datasources: RecoveryDatasources, saved: SavedDetails | None = None) -> list[InDoubt]:
    """The transactions that have prepared branches, wait for a branch after the decision, or have heuristic outcomes.

    Those with heuristic outcomes come first, and those that others have prepared under our names last.
    """
    gtrids = sorted({*snapshot.gtrids, *snapshot.claimed_gtrids})
    found = [_describe(snapshot, datasources, gtrid, saved) for gtrid in gtrids if _is_shown(snapshot, gtrid)]
    return sorted(found, key=lambda each: (not each.heuristics, each.foreign))


def show(
    snapshot: Snapshot,
    datasources: RecoveryDatasources,
    gtrid: str,
    *,
    expired: Iterable[Heuristic] = (),
    history: Iterable[AuditEntry] = (),
    saved: SavedDetails | None = None,
) -> InDoubt | None:
    """All that is known of one transaction, with its expired heuristic outcomes; None if nothing is known."""
    expired, history = tuple(expired), tuple(history)
    found = _describe(snapshot, datasources, gtrid, saved, expired)
    if gtrid not in snapshot.gtrids and not (expired or history or found.branches):
        return None
    return replace(found, history=history)


def _is_shown(snapshot: Snapshot, gtrid: str) -> bool:
    if snapshot.is_listed(gtrid) or any(heuristic.gtrid == gtrid for heuristic in snapshot.heuristics):
        return True
    if any(snapshot.unreachable_or_foreign(gtrid)):
        return True
    # A living process or another node carries out its own decisions. A decision that is carried out is only a record.
    decided = _decision(snapshot, gtrid)[0] == "commit" and snapshot.coordinator_state(gtrid) not in _ENDED_BY_OTHERS
    return decided and not _is_carried_out(snapshot, gtrid)


def _describe(
    snapshot: Snapshot,
    datasources: RecoveryDatasources,
    gtrid: str,
    saved: SavedDetails | None = None,
    expired: Iterable[Heuristic] = (),
) -> InDoubt:
    saved = saved or SavedDetails()
    name = split_gtrid(gtrid)
    state = snapshot.coordinator_state(gtrid)
    if (
        state is CoordinatorState.DEAD
        and _has_nothing_left(snapshot, gtrid)
        and snapshot.incarnations[name.incarnation] is IncarnationState.FENCED
    ):
        state = CoordinatorState.FENCED  # a pass does not write a fence again that no record or branch needs
    current = (heuristic for heuristic in snapshot.heuristics if heuristic.gtrid == gtrid)
    heuristics = tuple(dict.fromkeys((*current, *expired)))
    decision, where = _decision(snapshot, gtrid, heuristics)
    decided_at = snapshot.decisions[gtrid].recorded_at if gtrid in snapshot.decisions else 0.0
    ages = [branch.age for branch in snapshot.listed_branches(gtrid) if branch.age is not None]
    ages += [max(0.0, time.time() - decided_at)] if decided_at else []
    return InDoubt(
        gtrid,
        name.node,
        name.incarnation,
        state.value,
        max(ages, default=None),
        decision,
        where,
        tuple(replace(each, error=saved.errors.get(each.gid, "")) for each in _branches(snapshot, datasources, gtrid)),
        next_step(snapshot, datasources, gtrid),
        heuristics,
        _wants_attention(snapshot, gtrid, state, bool(heuristics)),
        ends=dict(saved.ends.get(gtrid, {})) if heuristics else {},
        note=snapshot.annotations(gtrid)[NOTE],
    )


def _wants_attention(snapshot: Snapshot, gtrid: str, state: CoordinatorState, heuristic: bool) -> bool:
    if heuristic or _has_unreachable_branches(snapshot, gtrid):
        return True
    if _has_nothing_left(snapshot, gtrid) or _is_carried_out(snapshot, gtrid):
        return False
    return state not in _ENDED_BY_OTHERS


def _has_nothing_left(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether nothing is left to do, as far as the datasources have answered."""
    open_work = snapshot.is_listed(gtrid) or _named_branches(snapshot, gtrid) or gtrid in snapshot.pointers
    return not (open_work or _has_unreachable_branches(snapshot, gtrid))


def _is_carried_out(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether a decision is carried out: its datasources have answered, and no branch that it names is prepared."""
    named = _named_branches(snapshot, gtrid)
    if snapshot.is_listed(gtrid) or not named or _has_unreachable_branches(snapshot, gtrid):
        return False
    return all(_missing_state(snapshot, record) == GONE for record in named)


def _has_unreachable_branches(snapshot: Snapshot, gtrid: str) -> bool:
    return bool(snapshot.unreachable_or_foreign(gtrid)[0])


def _decision(snapshot: Snapshot, gtrid: str, heuristics: Iterable[Heuristic] = ()) -> tuple[str, str]:
    """The decision, and where it is kept."""
    row, marked = snapshot.row(gtrid), snapshot.marked_by(gtrid)
    if row is not None:
        return ("commit", f"the row in {marked}") if row.committed else ("rollback", f"the tombstone in {marked}")
    if marked is None and gtrid in snapshot.decisions:
        return "commit", "the log"
    if gtrid in snapshot.aborted:
        return "rollback", "the log"
    for heuristic in heuristics:
        return heuristic.decided, "the record of its heuristic outcome"
    return ("undecided" if gtrid in snapshot.gtrids else "forgotten"), ""


def _named_branches(snapshot: Snapshot, gtrid: str) -> tuple[BranchRecord, ...]:
    """The branches that the decision of a transaction names."""
    row = snapshot.row(gtrid)
    if row is not None:
        return row.branches
    return snapshot.decisions[gtrid].branches if gtrid in snapshot.decisions else ()


def _branches(snapshot: Snapshot, datasources: RecoveryDatasources, gtrid: str) -> list[BranchState]:
    elsewhere, foreign = snapshot.unreachable_or_foreign(gtrid)
    found: dict[Xid, BranchState] = {}
    for state, branches in (("prepared", snapshot.listed_branches(gtrid)), (ELSEWHERE, elsewhere), (FOREIGN, foreign)):
        for branch in branches:
            where = f"database {branch.database}" if branch.database else branch.datasource
            found.setdefault(branch.xid, BranchState(branch.xid.joined, where, state, branch.owner or ""))
    for record in _named_branches(snapshot, gtrid):
        if record.xid not in found or found[record.xid].state == ELSEWHERE:
            found[record.xid] = BranchState(record.xid.joined, record.datasource, _missing_state(snapshot, record))
    for heuristic in snapshot.heuristics:
        if heuristic.gtrid == gtrid:
            xid = Xid(gtrid, heuristic.bqual)
            found[xid] = BranchState(xid.joined, heuristic.datasource, f"ended {heuristic.ended}")
    return list(found.values())


def _missing_state(snapshot: Snapshot, record: BranchRecord) -> str:
    """The state of a branch that a decision names and no datasource lists."""
    if snapshot.datasource_of(record) is not None:
        return OTHER_DATABASE if snapshot.other_database(record) else GONE
    return "no answer" if record.datasource in snapshot.unanswered else "not configured"


#: States of branches: not prepared any more, in a database that no datasource leads to, prepared by somebody else.
GONE, ELSEWHERE, FOREIGN = "not prepared", "prepared, and no datasource leads there", "not ours, by its owner"
_UNRESOLVED = ("prepared", "no answer", "not configured", ELSEWHERE)

#: The states in which the coordinator or another node ends the transaction.
_ENDED_BY_OTHERS = (CoordinatorState.ALIVE, CoordinatorState.OTHER_NODE)
_WHY_LEFT_ALONE = {
    CoordinatorState.OTHER_NODE: "it belongs to another node, whose recovery ends it",
    CoordinatorState.ALIVE: "its process is alive and ends it",
    CoordinatorState.UNKNOWN: "its incarnation is unknown to this log. Recover it with the log that it was "
    "begun with. Only if that log is lost, end it by hand, as the other databases of this gtrid show",
}


_FOREIGN_NEXT = (
    "leave it alone: the role that prepared it is none of ours, so it is no part of any transaction of ours. The "
    "server's administrator may end it"
)
#: The next step if nothing is left to do.
OVER = "nothing: no branch of it is prepared, as far as the datasources have answered"
#: The next step if the decision is carried out.
DONE = "delete the record of the decision: every branch that it names has ended"


def next_step(snapshot: Snapshot, datasources: RecoveryDatasources, gtrid: str) -> str:
    """What the next scan will do with a transaction, and why, in words."""
    state = snapshot.coordinator_state(gtrid)
    if _has_nothing_left(snapshot, gtrid):
        _, foreign = snapshot.unreachable_or_foreign(gtrid)
        return _FOREIGN_NEXT if foreign else OVER
    if _is_carried_out(snapshot, gtrid):
        return DONE
    reason = _why_left_alone(snapshot, gtrid)
    if reason:
        return f"leave it alone: {reason}"
    action = _action(snapshot, datasources, gtrid)
    return f"fence its dead process, then {action}" if state is CoordinatorState.DEAD else f"{action} ({state.value})"


def _why_left_alone(snapshot: Snapshot, gtrid: str) -> str:
    disputed = snapshot.disputed(gtrid)
    if disputed:
        return f"its branches name different deciders ({disputed}), and the log names none"
    if _has_unreachable_branches(snapshot, gtrid) and not (
        snapshot.is_listed(gtrid) or _named_branches(snapshot, gtrid)
    ):
        return (
            "no datasource of this configuration leads to the database where it is prepared: add the datasource's file"
        )
    return _WHY_LEFT_ALONE.get(snapshot.coordinator_state(gtrid), "")


def _kept_until(snapshot: Snapshot, named: Iterable[BranchRecord]) -> str:
    """How long the decision must be kept beyond the next scan, in words; empty if it need not be."""
    missing = {record.datasource for record in named if snapshot.datasource_of(record) is None}
    elsewhere = {
        record.datasource for record in named if record.datasource not in missing and snapshot.other_database(record)
    }
    until = [f"{', '.join(sorted(missing))} answers"] if missing else []
    until += (
        [f"{', '.join(sorted(elsewhere))} leads to the database that the branch was prepared in"] if elsewhere else []
    )
    return f", and keep the decision until {' and '.join(until)}" if until else ""


def _action(snapshot: Snapshot, datasources: RecoveryDatasources, gtrid: str) -> str:
    marked = snapshot.marked_by(gtrid)
    until = _kept_until(snapshot, _named_branches(snapshot, gtrid))
    if marked is None:
        if gtrid in snapshot.decisions:
            return f"commit: it is decided in the log{until}"
        return "roll back: it is not decided, and cannot be decided any more"
    if marked not in datasources.tables:
        return f"leave it alone: {marked} decides it, and is no marked datasource (mode=cmr) of this configuration"
    if marked in snapshot.unanswered:
        return f"leave it alone until {marked}, which decides it, answers"
    row = snapshot.row(gtrid)
    if row is None:
        return f"put a tombstone into {marked}, which decides it, and roll back unless {marked} has committed it"
    return f"commit: it is committed in {marked}{until}" if row.committed else f"roll back: {marked} has a tombstone"
