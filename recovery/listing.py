"""What people are told of transactions in doubt: how each stands, and what recovery will do with it, and why."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from recovery.audit import Deed
from recovery.evidence import STRAYED, Evidence, Standing
from recovery.sites import Sites
from txpool.log.base import Heuristic, Life
from txpool.resources.base import BranchRecord
from txpool.xid import Xid, split_gtrid


@dataclass(frozen=True, slots=True)
class BranchState:
    """One branch: `state` is prepared, or why it is not seen to be (not prepared, no answer, …), or how it ended."""

    gid: str
    datasource: str
    state: str


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
    history: tuple[Deed, ...] = ()

    @property
    def unresolved(self) -> bool:
        """Whether there is a branch of it that may be prepared; else only a record is left of it."""
        return any(branch.state in ("prepared", "no answer", "not configured") for branch in self.branches)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def in_doubt(evidence: Evidence, sites: Sites) -> list[InDoubt]:
    """What is prepared, what is decided and waits for a branch, and what ended otherwise than it was decided."""
    return [_described(evidence, sites, gtrid) for gtrid in evidence.gtrids if _is_shown(evidence, gtrid)]


def show(
    evidence: Evidence, sites: Sites, gtrid: str, expired: Iterable[Heuristic] = (), history: Iterable[Deed] = ()
) -> InDoubt | None:
    """One transaction, whatever is known of it, with what has expired of it; None where nothing is."""
    expired, history = tuple(expired), tuple(history)
    if gtrid not in evidence.gtrids and not expired and not history:
        return None
    return replace(_described(evidence, sites, gtrid, expired), history=history)


def _is_shown(evidence: Evidence, gtrid: str) -> bool:
    if evidence.listed(gtrid) or any(heuristic.gtrid == gtrid for heuristic in evidence.heuristics):
        return True
    # Those of a living process, or of another node, are its daily work.
    return _decision(evidence, gtrid)[0] == "commit" and evidence.standing(gtrid) not in _THEIRS


def _described(evidence: Evidence, sites: Sites, gtrid: str, expired: Iterable[Heuristic] = ()) -> InDoubt:
    named = split_gtrid(gtrid)
    standing = evidence.standing(gtrid)
    if standing is Standing.DEAD and _is_over(evidence, gtrid) and evidence.lives[named.incarnation] is Life.FENCED:
        standing = Standing.FENCED  # a pass does not build a fence again that holds nothing back
    here = (heuristic for heuristic in evidence.heuristics if heuristic.gtrid == gtrid)
    noted = tuple(dict.fromkeys((*here, *expired)))
    decision, kept = _decision(evidence, gtrid, noted)
    made = evidence.decisions[gtrid].made if gtrid in evidence.decisions else 0.0
    ages = [branch.age for branch in evidence.seen(gtrid) if branch.age is not None]
    ages += [max(0.0, time.time() - made)] if made else []
    return InDoubt(
        gtrid,
        named.node,
        named.incarnation,
        standing.value,
        max(ages, default=None),
        decision,
        kept,
        tuple(_branches(evidence, sites, gtrid)),
        next_step(evidence, sites, gtrid),
        noted,
        bool(noted) or not (standing in _THEIRS or _is_over(evidence, gtrid)),
    )


def _is_over(evidence: Evidence, gtrid: str) -> bool:
    """Whether nothing is left to be done, as far as the datasources have answered."""
    return not (evidence.listed(gtrid) or _named(evidence, gtrid) or gtrid in evidence.pointers)


def _decision(evidence: Evidence, gtrid: str, noted: Iterable[Heuristic] = ()) -> tuple[str, str]:
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


def _named(evidence: Evidence, gtrid: str) -> tuple[BranchRecord, ...]:
    """The branches that a decision names."""
    row = evidence.row(gtrid)
    if row is not None:
        return row.branches
    return evidence.decisions[gtrid].branches if gtrid in evidence.decisions else ()


def _branches(evidence: Evidence, sites: Sites, gtrid: str) -> list[BranchState]:
    found = {
        branch.xid: BranchState(branch.xid.joined, branch.datasource, "prepared") for branch in evidence.seen(gtrid)
    }
    for record in _named(evidence, gtrid):
        if record.xid not in found:
            found[record.xid] = BranchState(record.xid.joined, record.datasource, _unseen(evidence, record))
    for heuristic in evidence.heuristics:
        if heuristic.gtrid == gtrid:
            xid = Xid(gtrid, heuristic.bqual)
            found[xid] = BranchState(xid.joined, heuristic.datasource, f"ended {heuristic.ended}")
    return list(found.values())


def _unseen(evidence: Evidence, record: BranchRecord) -> str:
    """The state of a branch that a decision names, and no datasource lists."""
    if record.datasource in evidence.listings:
        return STRAYED if evidence.strayed(record) else "not prepared"
    return "no answer" if record.datasource in evidence.silent else "not configured"


#: What these are in is not ours to end.
_THEIRS = (Standing.ALIVE, Standing.FOREIGN)
_LEFT = {
    Standing.FOREIGN: "leave it alone: it is another node's, and that node's recovery ends it",
    Standing.ALIVE: "leave it alone: its process lives, and ends it",
    Standing.UNKNOWN: "leave it alone: its incarnation is unknown to this log. Recover it with the log that it was "
    "begun with; only where that is lost, end it by hand, as the other databases of this gtrid show",
}


#: The next step of what is over.
OVER = "nothing: no branch of it is prepared, as far as the datasources have answered"


def next_step(evidence: Evidence, sites: Sites, gtrid: str) -> str:
    """What the next scan will do with a transaction, and why, in words."""
    standing = evidence.standing(gtrid)
    if _is_over(evidence, gtrid):
        return OVER
    if standing in _LEFT:
        return _LEFT[standing]
    deed = _deed(evidence, sites, gtrid)
    return f"fence its dead process, then {deed}" if standing is Standing.DEAD else f"{deed} ({standing.value})"


def _wait(evidence: Evidence, named: Iterable[BranchRecord]) -> str:
    """What the decision is kept for beyond the next scan, in words; or empty."""
    missing = {record.datasource for record in named if record.datasource not in evidence.listings}
    strayed = {record.datasource for record in named if record.datasource not in missing and evidence.strayed(record)}
    until = [f"{', '.join(sorted(missing))} answers"] if missing else []
    until += [f"{', '.join(sorted(strayed))} leads to the database that it was prepared in"] if strayed else []
    return f", and keep the decision until {' and '.join(until)}" if until else ""


def _deed(evidence: Evidence, sites: Sites, gtrid: str) -> str:
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
