"""What people are told of transactions in doubt: how each stands, and what recovery will do with it, and why."""

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
    """One branch: `state` is prepared, or why it is not seen to be (not prepared, no answer, …), or how it ended."""

    gid: str
    datasource: str
    state: str
    #: The role that prepared it, as the server tells it; empty where it is not prepared, or nothing tells.
    owner: str = ""
    #: Why the last attempt to end it had no answer; empty where there was none, or an answer.
    error: str = ""


@dataclass(frozen=True, slots=True)
class InDoubt:
    """One transaction. `age` is in seconds, for people only: nothing is inferred from it."""

    gtrid: str
    node: str
    incarnation: str
    #: How its process stands.
    standing: str
    age: float | None
    #: commit, rollback, undecided, or forgotten where nothing tells it any more.
    decision: str
    #: Where that is kept; empty where it is not kept anywhere.
    kept: str
    branches: tuple[BranchState, ...]
    #: What recovery will do with it, and why.
    next: str
    heuristics: tuple[Heuristic, ...] = ()
    #: False while its own process lives and ends it.
    attention: bool = True
    #: What people have done about it by hand, oldest first; told where one transaction is shown.
    history: tuple[AuditEntry, ...] = ()
    #: How each database has ended its part, where one has done otherwise than decided: what is known of that.
    ends: dict[str, str] = field(default_factory=dict)
    #: What its program calls it; told where its decision is kept, and empty where it has none.
    note: str = ""

    @property
    def unresolved(self) -> bool:
        """Whether there is a branch of it that may be prepared; else only a record is left of it."""
        return any(branch.state in _UNRESOLVED for branch in self.branches)

    @property
    def ours(self) -> bool:
        """Whether its node is ours to recover: a name of another's is only what its branches say of themselves."""
        return self.standing != CoordinatorState.OTHER_NODE.value

    @property
    def foreign(self) -> bool:
        """Whether all that is known of it is what somebody else has prepared under its name."""
        return bool(self.branches) and all(branch.state == FOREIGN for branch in self.branches)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def in_doubt(snapshot: Snapshot, datasources: RecoveryDatasources, saved: SavedDetails | None = None) -> list[InDoubt]:
    """What is prepared, what is decided and waits for a branch, and what ended otherwise than it was decided.

    What ended otherwise comes first, and what others have prepared under our names last.
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
    """One transaction, whatever is known of it, with what has expired of it; None where nothing is."""
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
    # Those of a living process, or of another node, are its daily work, and a decision that is carried out is a record.
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
    named = split_gtrid(gtrid)
    standing = snapshot.coordinator_state(gtrid)
    if (
        standing is CoordinatorState.DEAD
        and _has_nothing_left(snapshot, gtrid)
        and snapshot.incarnations[named.incarnation] is IncarnationState.FENCED
    ):
        standing = CoordinatorState.FENCED  # a pass does not build a fence again that holds nothing back
    here = (heuristic for heuristic in snapshot.heuristics if heuristic.gtrid == gtrid)
    noted = tuple(dict.fromkeys((*here, *expired)))
    decision, where = _decision(snapshot, gtrid, noted)
    made = snapshot.decisions[gtrid].recorded_at if gtrid in snapshot.decisions else 0.0
    ages = [branch.age for branch in snapshot.listed_branches(gtrid) if branch.age is not None]
    ages += [max(0.0, time.time() - made)] if made else []
    return InDoubt(
        gtrid,
        named.node,
        named.incarnation,
        standing.value,
        max(ages, default=None),
        decision,
        where,
        tuple(replace(each, error=saved.errors.get(each.gid, "")) for each in _branches(snapshot, datasources, gtrid)),
        next_step(snapshot, datasources, gtrid),
        noted,
        _wants_attention(snapshot, gtrid, standing, bool(noted)),
        ends=dict(saved.ends.get(gtrid, {})) if noted else {},
        note=snapshot.annotations(gtrid)[NOTE],
    )


def _wants_attention(snapshot: Snapshot, gtrid: str, standing: CoordinatorState, noted: bool) -> bool:
    if noted or _has_unreachable_branches(snapshot, gtrid):
        return True
    if _has_nothing_left(snapshot, gtrid) or _is_carried_out(snapshot, gtrid):
        return False
    return standing not in _ENDED_BY_OTHERS


def _has_nothing_left(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether nothing is left to be done, as far as the datasources have answered."""
    kept = snapshot.is_listed(gtrid) or _named_branches(snapshot, gtrid) or gtrid in snapshot.pointers
    return not (kept or _has_unreachable_branches(snapshot, gtrid))


def _is_carried_out(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether it is decided, and each branch that the decision names has answered and is gone: a record to clean."""
    named = _named_branches(snapshot, gtrid)
    if snapshot.is_listed(gtrid) or not named or _has_unreachable_branches(snapshot, gtrid):
        return False
    return all(_missing_state(snapshot, record) == GONE for record in named)


def _has_unreachable_branches(snapshot: Snapshot, gtrid: str) -> bool:
    return bool(snapshot.unreachable_or_foreign(gtrid)[0])


def _decision(snapshot: Snapshot, gtrid: str, noted: Iterable[Heuristic] = ()) -> tuple[str, str]:
    row, marked = snapshot.row(gtrid), snapshot.marked_by(gtrid)
    if row is not None:
        return ("commit", f"the row in {marked}") if row.committed else ("rollback", f"the tombstone in {marked}")
    if marked is None and gtrid in snapshot.decisions:
        return "commit", "the log"
    if gtrid in snapshot.aborted:
        return "rollback", "the log"
    for heuristic in noted:
        return heuristic.decided, "what is noted of its heuristic outcome"
    return ("undecided" if gtrid in snapshot.gtrids else "forgotten"), ""


def _named_branches(snapshot: Snapshot, gtrid: str) -> tuple[BranchRecord, ...]:
    """The branches that a decision names."""
    row = snapshot.row(gtrid)
    if row is not None:
        return row.branches
    return snapshot.decisions[gtrid].branches if gtrid in snapshot.decisions else ()


def _branches(snapshot: Snapshot, datasources: RecoveryDatasources, gtrid: str) -> list[BranchState]:
    elsewhere, foreign = snapshot.unreachable_or_foreign(gtrid)
    found: dict[Xid, BranchState] = {}
    for state, branches in (("prepared", snapshot.listed_branches(gtrid)), (ELSEWHERE, elsewhere), (FOREIGN, foreign)):
        for seen in branches:
            where = f"database {seen.database}" if seen.database else seen.datasource
            found.setdefault(seen.xid, BranchState(seen.xid.joined, where, state, seen.owner or ""))
    for record in _named_branches(snapshot, gtrid):
        if record.xid not in found or found[record.xid].state == ELSEWHERE:
            found[record.xid] = BranchState(record.xid.joined, record.datasource, _missing_state(snapshot, record))
    for heuristic in snapshot.heuristics:
        if heuristic.gtrid == gtrid:
            xid = Xid(gtrid, heuristic.bqual)
            found[xid] = BranchState(xid.joined, heuristic.datasource, f"ended {heuristic.ended}")
    return list(found.values())


def _missing_state(snapshot: Snapshot, record: BranchRecord) -> str:
    """The state of a branch that a decision names, and no datasource lists."""
    if snapshot.datasource_of(record) is not None:
        return OTHER_DATABASE if snapshot.other_database(record) else GONE
    return "no answer" if record.datasource in snapshot.unanswered else "not configured"


#: States of branches: what is not prepared any more, what no datasource leads to, and what somebody else has prepared.
GONE, ELSEWHERE, FOREIGN = "not prepared", "prepared, and no datasource leads there", "not ours, by its owner"
_UNRESOLVED = ("prepared", "no answer", "not configured", ELSEWHERE)

#: What these are in is not ours to end.
_ENDED_BY_OTHERS = (CoordinatorState.ALIVE, CoordinatorState.OTHER_NODE)
_WHY_LEFT_ALONE = {
    CoordinatorState.OTHER_NODE: "it is another node's, and that node's recovery ends it",
    CoordinatorState.ALIVE: "its process lives, and ends it",
    CoordinatorState.UNKNOWN: "its incarnation is unknown to this log. Recover it with the log that it was "
    "begun with; only where that is lost, end it by hand, as the other databases of this gtrid show",
}


_FOREIGN_NEXT = (
    "leave it alone: the role that prepared it is none of ours, so it is no part of any transaction of ours. Whoever "
    "administers the server may end it"
)
#: The next step of what is over.
OVER = "nothing: no branch of it is prepared, as far as the datasources have answered"
#: The next step of what is decided and carried out.
DONE = "clean the record: every branch that the decision names has ended"


def next_step(snapshot: Snapshot, datasources: RecoveryDatasources, gtrid: str) -> str:
    """What the next scan will do with a transaction, and why, in words."""
    standing = snapshot.coordinator_state(gtrid)
    if _has_nothing_left(snapshot, gtrid):
        _, foreign = snapshot.unreachable_or_foreign(gtrid)
        return _FOREIGN_NEXT if foreign else OVER
    if _is_carried_out(snapshot, gtrid):
        return DONE
    left = _why_left(snapshot, gtrid)
    if left:
        return f"leave it alone: {left}"
    deed = _action(snapshot, datasources, gtrid)
    return f"fence its dead process, then {deed}" if standing is CoordinatorState.DEAD else f"{deed} ({standing.value})"


def _why_left(snapshot: Snapshot, gtrid: str) -> str:
    disputed = snapshot.disputed(gtrid)
    if disputed:
        return f"its branches name different deciders ({disputed}), and the log says neither"
    if _has_unreachable_branches(snapshot, gtrid) and not (
        snapshot.is_listed(gtrid) or _named_branches(snapshot, gtrid)
    ):
        return "no datasource of this configuration leads to where it is prepared: name its file"
    return _WHY_LEFT_ALONE.get(snapshot.coordinator_state(gtrid), "")


def _kept_until(snapshot: Snapshot, named: Iterable[BranchRecord]) -> str:
    """What the decision is kept for beyond the next scan, in words; or empty."""
    missing = {record.datasource for record in named if snapshot.datasource_of(record) is None}
    strayed = {
        record.datasource for record in named if record.datasource not in missing and snapshot.other_database(record)
    }
    until = [f"{', '.join(sorted(missing))} answers"] if missing else []
    until += [f"{', '.join(sorted(strayed))} leads to the database that it was prepared in"] if strayed else []
    return f", and keep the decision until {' and '.join(until)}" if until else ""


def _action(snapshot: Snapshot, datasources: RecoveryDatasources, gtrid: str) -> str:
    marked = snapshot.marked_by(gtrid)
    wait = _kept_until(snapshot, _named_branches(snapshot, gtrid))
    if marked is None:
        if gtrid in snapshot.decisions:
            return f"commit: it is decided in the log{wait}"
        return "roll back: it is not decided, and cannot be any more"
    if marked not in datasources.tables:
        return f"leave it alone: {marked} decides it, and is no marked datasource (mode=cmr) of this configuration"
    if marked in snapshot.unanswered:
        return f"leave it alone until {marked} answers, which decides it"
    row = snapshot.row(gtrid)
    if row is None:
        return f"put a tombstone into {marked}, which decides it: roll back, unless that meets a commit"
    return f"commit: it is committed in {marked}{wait}" if row.committed else f"roll back: {marked} has a tombstone"
