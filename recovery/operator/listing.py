"""The transactions in doubt, described for people: `in_doubt` lists them, `show` describes one.

`next_step` tells what recovery will do with each.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from recovery.operator.audit import AuditEntry
from recovery.operator.next_step import (
    has_nothing_left,
    has_unreachable_branches,
    is_carried_out,
    missing_state,
    named_branches,
    next_step,
)
from recovery.scan.datasources.datasources import RecoveryDatasources
from recovery.scan.saved import SavedDetails
from recovery.scan.snapshot import CoordinatorState, Snapshot
from recovery.scan.windows import windows
from txpool.log.base import Heuristic, IncarnationState
from txpool.tm.commit.annotations import NOTE
from txpool.xid import Xid, split_gtrid

#: States of branches: in a database that no datasource leads to, and prepared by somebody else.
ELSEWHERE, FOREIGN = "prepared, and no datasource leads there", "not ours, by its owner"
_UNRESOLVED = ("prepared", "no answer", "not configured", ELSEWHERE)
#: The order of a list: with heuristic outcomes, without; of both, those that others have prepared come last.
_HEURISTIC, _ALL_FOREIGN, _ORDINARY = range(3)
#: The states in which the coordinator or another node ends the transaction.
_ENDED_BY_OTHERS = (CoordinatorState.ALIVE, CoordinatorState.OTHER_NODE)


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
    #: The datasource that commits before the decision, without a trace; empty if there is none, or it is decided.
    last_resource: str = ""

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


def in_doubt(
    snapshot: Snapshot,
    datasources: RecoveryDatasources,
    saved: SavedDetails | None = None,
    *,
    over: Collection[str] = (),
) -> list[InDoubt]:
    """The transactions that have prepared branches, wait for a branch after the decision, or have heuristic outcomes.

    Those with heuristic outcomes come first, and those that others have prepared under our names last. The gtrids of
    `over` are left out: a scan has ended and forgotten them since the snapshot.
    """
    gtrids = _shown(snapshot).difference(over)
    found = sorted(gtrids, key=lambda gtrid: (_rank(snapshot, gtrid), gtrid))
    return [_describe(snapshot, datasources, gtrid, saved) for gtrid in found]


def each_in_doubt(
    snapshot: Snapshot, datasources: RecoveryDatasources, saved: SavedDetails | None = None
) -> Iterator[InDoubt]:
    """As `in_doubt`, one after the other, each described when it is its turn."""
    ranks = {_ORDINARY, *((_HEURISTIC, _HEURISTIC + _ALL_FOREIGN) if snapshot.heuristics else ())}
    for rank in range(_ORDINARY + _ALL_FOREIGN + 1):
        if rank not in ranks:
            continue
        for window in windows(snapshot):
            part = window.snapshot
            found = {gtrid: _rank(part, gtrid) for gtrid in _shown(part)}
            ranks.update(found.values())
            for gtrid in sorted(gtrid for gtrid, its in found.items() if its == rank):
                yield _describe(part, datasources, gtrid, saved)


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


def _shown(snapshot: Snapshot) -> set[str]:
    return {gtrid for gtrid in {*snapshot.gtrids, *snapshot.claimed_gtrids} if _is_shown(snapshot, gtrid)}


def _rank(snapshot: Snapshot, gtrid: str) -> int:
    with_heuristics = _HEURISTIC if snapshot.heuristics_of(gtrid) else _ORDINARY
    return with_heuristics + _ALL_FOREIGN * _is_foreign(snapshot, gtrid)


def _is_foreign(snapshot: Snapshot, gtrid: str) -> bool:
    claimed = snapshot.unreachable_or_foreign(gtrid)[1]
    return bool(claimed) and all(branch.state == FOREIGN for branch in _branches(snapshot, gtrid))


def _is_shown(snapshot: Snapshot, gtrid: str) -> bool:
    if snapshot.is_listed(gtrid) or snapshot.heuristics_of(gtrid):
        return True
    if any(snapshot.unreachable_or_foreign(gtrid)):
        return True
    if snapshot.coordinator_state(gtrid) in _ENDED_BY_OTHERS:
        return False
    # A decision that is carried out is only a record.
    decided = _decision(snapshot, gtrid)[0] == "commit" and not is_carried_out(snapshot, gtrid)
    return decided or bool(snapshot.last_resource(gtrid))


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
        and has_nothing_left(snapshot, gtrid)
        and snapshot.incarnations[name.incarnation] is IncarnationState.FENCED
    ):
        state = CoordinatorState.FENCED  # a pass does not write a fence again that no record or branch needs
    heuristics = tuple(dict.fromkeys((*snapshot.heuristics_of(gtrid), *expired)))
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
        tuple(replace(each, error=saved.errors.get(each.gid, "")) for each in _branches(snapshot, gtrid)),
        next_step(snapshot, datasources, gtrid),
        heuristics,
        _wants_attention(snapshot, gtrid, state, bool(heuristics)),
        ends=dict(saved.ends.get(gtrid, {})) if heuristics else {},
        note=snapshot.annotations(gtrid)[NOTE],
        last_resource=snapshot.last_resource(gtrid),
    )


def _wants_attention(snapshot: Snapshot, gtrid: str, state: CoordinatorState, heuristic: bool) -> bool:
    if heuristic or has_unreachable_branches(snapshot, gtrid) or snapshot.hangs(gtrid):
        return True
    if has_nothing_left(snapshot, gtrid) or is_carried_out(snapshot, gtrid):
        return False
    return state not in _ENDED_BY_OTHERS


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


def _branches(snapshot: Snapshot, gtrid: str) -> list[BranchState]:
    elsewhere, foreign = snapshot.unreachable_or_foreign(gtrid)
    found: dict[Xid, BranchState] = {}
    for state, branches in (("prepared", snapshot.listed_branches(gtrid)), (ELSEWHERE, elsewhere), (FOREIGN, foreign)):
        for branch in branches:
            where = f"database {branch.database}" if branch.database else branch.datasource
            found.setdefault(branch.xid, BranchState(branch.xid.joined, where, state, branch.owner or ""))
    for record in named_branches(snapshot, gtrid):
        if record.xid not in found or found[record.xid].state == ELSEWHERE:
            found[record.xid] = BranchState(record.xid.joined, record.datasource, missing_state(snapshot, record))
    for heuristic in snapshot.heuristics_of(gtrid):
        xid = Xid(gtrid, heuristic.bqual)
        found[xid] = BranchState(xid.joined, heuristic.datasource, f"ended {heuristic.ended}")
    return list(found.values())
