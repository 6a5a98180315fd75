"""What people are told of transactions in doubt: how each stands, and what recovery will do with it, and why."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from recovery.operator.audit import AuditEntry
from recovery.scan.datasources import RecoveryDatasources
from recovery.scan.saved import SavedForPeople
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
        return any(branch.state in _OPEN for branch in self.branches)

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


def in_doubt(evidence: Snapshot, sites: RecoveryDatasources, kept: SavedForPeople | None = None) -> list[InDoubt]:
    """What is prepared, what is decided and waits for a branch, and what ended otherwise than it was decided.

    What ended otherwise comes first, and what others have prepared under our names last.
    """
    gtrids = sorted({*evidence.gtrids, *evidence.claimed_gtrids})
    found = [_described(evidence, sites, gtrid, kept) for gtrid in gtrids if _is_shown(evidence, gtrid)]
    return sorted(found, key=lambda each: (not each.heuristics, each.foreign))


def show(
    evidence: Snapshot,
    sites: RecoveryDatasources,
    gtrid: str,
    *,
    expired: Iterable[Heuristic] = (),
    history: Iterable[AuditEntry] = (),
    kept: SavedForPeople | None = None,
) -> InDoubt | None:
    """One transaction, whatever is known of it, with what has expired of it; None where nothing is."""
    expired, history = tuple(expired), tuple(history)
    found = _described(evidence, sites, gtrid, kept, expired)
    if gtrid not in evidence.gtrids and not (expired or history or found.branches):
        return None
    return replace(found, history=history)


def _is_shown(evidence: Snapshot, gtrid: str) -> bool:
    if evidence.listed(gtrid) or any(heuristic.gtrid == gtrid for heuristic in evidence.heuristics):
        return True
    if any(evidence.unreachable_or_foreign(gtrid)):
        return True
    # Those of a living process, or of another node, are its daily work, and a decision that is carried out is a record.
    decided = _decision(evidence, gtrid)[0] == "commit" and evidence.coordinator_state(gtrid) not in _THEIRS
    return decided and not _is_done(evidence, gtrid)


def _described(
    evidence: Snapshot,
    sites: RecoveryDatasources,
    gtrid: str,
    kept: SavedForPeople | None = None,
    expired: Iterable[Heuristic] = (),
) -> InDoubt:
    kept = kept or SavedForPeople()
    named = split_gtrid(gtrid)
    standing = evidence.coordinator_state(gtrid)
    if (
        standing is CoordinatorState.DEAD
        and _is_over(evidence, gtrid)
        and evidence.incarnations[named.incarnation] is IncarnationState.FENCED
    ):
        standing = CoordinatorState.FENCED  # a pass does not build a fence again that holds nothing back
    here = (heuristic for heuristic in evidence.heuristics if heuristic.gtrid == gtrid)
    noted = tuple(dict.fromkeys((*here, *expired)))
    decision, where = _decision(evidence, gtrid, noted)
    made = evidence.decisions[gtrid].recorded_at if gtrid in evidence.decisions else 0.0
    ages = [branch.age for branch in evidence.listed_branches(gtrid) if branch.age is not None]
    ages += [max(0.0, time.time() - made)] if made else []
    return InDoubt(
        gtrid,
        named.node,
        named.incarnation,
        standing.value,
        max(ages, default=None),
        decision,
        where,
        tuple(replace(each, error=kept.errors.get(each.gid, "")) for each in _branches(evidence, sites, gtrid)),
        next_step(evidence, sites, gtrid),
        noted,
        _wants_attention(evidence, gtrid, standing, bool(noted)),
        ends=dict(kept.ends.get(gtrid, {})) if noted else {},
        note=evidence.annotations(gtrid)[NOTE],
    )


def _wants_attention(evidence: Snapshot, gtrid: str, standing: CoordinatorState, noted: bool) -> bool:
    if noted or _is_elsewhere(evidence, gtrid):
        return True
    if _is_over(evidence, gtrid) or _is_done(evidence, gtrid):
        return False
    return standing not in _THEIRS


def _is_over(evidence: Snapshot, gtrid: str) -> bool:
    """Whether nothing is left to be done, as far as the datasources have answered."""
    kept = evidence.listed(gtrid) or _named(evidence, gtrid) or gtrid in evidence.pointers
    return not (kept or _is_elsewhere(evidence, gtrid))


def _is_done(evidence: Snapshot, gtrid: str) -> bool:
    """Whether it is decided, and each branch that the decision names has answered and is gone: a record to clean."""
    named = _named(evidence, gtrid)
    if evidence.listed(gtrid) or not named or _is_elsewhere(evidence, gtrid):
        return False
    return all(_missing_state(evidence, record) == GONE for record in named)


def _is_elsewhere(evidence: Snapshot, gtrid: str) -> bool:
    return bool(evidence.unreachable_or_foreign(gtrid)[0])


def _decision(evidence: Snapshot, gtrid: str, noted: Iterable[Heuristic] = ()) -> tuple[str, str]:
    row, marked = evidence.row(gtrid), evidence.marked_by(gtrid)
    if row is not None:
        return ("commit", f"the row in {marked}") if row.committed else ("rollback", f"the tombstone in {marked}")
    if marked is None and gtrid in evidence.decisions:
        return "commit", "the log"
    if gtrid in evidence.aborted:
        return "rollback", "the log"
    for heuristic in noted:
        return heuristic.decided, "what is noted of its heuristic outcome"
    return ("undecided" if gtrid in evidence.gtrids else "forgotten"), ""


def _named(evidence: Snapshot, gtrid: str) -> tuple[BranchRecord, ...]:
    """The branches that a decision names."""
    row = evidence.row(gtrid)
    if row is not None:
        return row.branches
    return evidence.decisions[gtrid].branches if gtrid in evidence.decisions else ()


def _branches(evidence: Snapshot, sites: RecoveryDatasources, gtrid: str) -> list[BranchState]:
    elsewhere, foreign = evidence.unreachable_or_foreign(gtrid)
    found: dict[Xid, BranchState] = {}
    for state, branches in (("prepared", evidence.listed_branches(gtrid)), (ELSEWHERE, elsewhere), (FOREIGN, foreign)):
        for seen in branches:
            where = f"database {seen.database}" if seen.database else seen.datasource
            found.setdefault(seen.xid, BranchState(seen.xid.joined, where, state, seen.owner or ""))
    for record in _named(evidence, gtrid):
        if record.xid not in found or found[record.xid].state == ELSEWHERE:
            found[record.xid] = BranchState(record.xid.joined, record.datasource, _missing_state(evidence, record))
    for heuristic in evidence.heuristics:
        if heuristic.gtrid == gtrid:
            xid = Xid(gtrid, heuristic.bqual)
            found[xid] = BranchState(xid.joined, heuristic.datasource, f"ended {heuristic.ended}")
    return list(found.values())


def _missing_state(evidence: Snapshot, record: BranchRecord) -> str:
    """The state of a branch that a decision names, and no datasource lists."""
    if evidence.datasource_of(record) is not None:
        return OTHER_DATABASE if evidence.other_database(record) else GONE
    return "no answer" if record.datasource in evidence.silent else "not configured"


#: States of branches: what is not prepared any more, what no datasource leads to, and what somebody else has prepared.
GONE, ELSEWHERE, FOREIGN = "not prepared", "prepared, and no datasource leads there", "not ours, by its owner"
_OPEN = ("prepared", "no answer", "not configured", ELSEWHERE)

#: What these are in is not ours to end.
_THEIRS = (CoordinatorState.ALIVE, CoordinatorState.OTHER_NODE)
_LEFT = {
    CoordinatorState.OTHER_NODE: "it is another node's, and that node's recovery ends it",
    CoordinatorState.ALIVE: "its process lives, and ends it",
    CoordinatorState.UNKNOWN: "its incarnation is unknown to this log. Recover it with the log that it was "
    "begun with; only where that is lost, end it by hand, as the other databases of this gtrid show",
}


_CLAIMED = (
    "leave it alone: the role that prepared it is none of ours, so it is no part of any transaction of ours. Whoever "
    "administers the server may end it"
)
#: The next step of what is over.
OVER = "nothing: no branch of it is prepared, as far as the datasources have answered"
#: The next step of what is decided and carried out.
DONE = "clean the record: every branch that the decision names has ended"


def next_step(evidence: Snapshot, sites: RecoveryDatasources, gtrid: str) -> str:
    """What the next scan will do with a transaction, and why, in words."""
    standing = evidence.coordinator_state(gtrid)
    if _is_over(evidence, gtrid):
        _, foreign = evidence.unreachable_or_foreign(gtrid)
        return _CLAIMED if foreign else OVER
    if _is_done(evidence, gtrid):
        return DONE
    left = _why_left(evidence, gtrid)
    if left:
        return f"leave it alone: {left}"
    deed = _action(evidence, sites, gtrid)
    return f"fence its dead process, then {deed}" if standing is CoordinatorState.DEAD else f"{deed} ({standing.value})"


def _why_left(evidence: Snapshot, gtrid: str) -> str:
    disputed = evidence.disputed(gtrid)
    if disputed:
        return f"its branches name different deciders ({disputed}), and the log says neither"
    if _is_elsewhere(evidence, gtrid) and not (evidence.listed(gtrid) or _named(evidence, gtrid)):
        return "no datasource of this configuration leads to where it is prepared: name its file"
    return _LEFT.get(evidence.coordinator_state(gtrid), "")


def _wait(evidence: Snapshot, named: Iterable[BranchRecord]) -> str:
    """What the decision is kept for beyond the next scan, in words; or empty."""
    missing = {record.datasource for record in named if evidence.datasource_of(record) is None}
    strayed = {
        record.datasource for record in named if record.datasource not in missing and evidence.other_database(record)
    }
    until = [f"{', '.join(sorted(missing))} answers"] if missing else []
    until += [f"{', '.join(sorted(strayed))} leads to the database that it was prepared in"] if strayed else []
    return f", and keep the decision until {' and '.join(until)}" if until else ""


def _action(evidence: Snapshot, sites: RecoveryDatasources, gtrid: str) -> str:
    marked = evidence.marked_by(gtrid)
    wait = _wait(evidence, _named(evidence, gtrid))
    if marked is None:
        if gtrid in evidence.decisions:
            return f"commit: it is decided in the log{wait}"
        return "roll back: it is not decided, and cannot be any more"
    if marked not in sites.tables:
        return f"leave it alone: {marked} decides it, and is no marked datasource (mode=cmr) of this configuration"
    if marked in evidence.silent:
        return f"leave it alone until {marked} answers, which decides it"
    row = evidence.row(gtrid)
    if row is None:
        return f"put a tombstone into {marked}, which decides it: roll back, unless that meets a commit"
    return f"commit: it is committed in {marked}{wait}" if row.committed else f"roll back: {marked} has a tombstone"
