"""The orphan filters and their vote."""

from __future__ import annotations

import pytest

from recovery.scan.modules.orphans import (
    Ballot,
    IncarnationFilter,
    NodeFilter,
    TransactionLogFilter,
    Vote,
    all_filters,
    poll,
)
from recovery.scan.snapshot import CoordinatorState, Snapshot
from tests.models.recovery import snapshot_of
from tests.models.recovery_databases import NODE
from txpool.log.base import Decision, IncarnationState
from txpool.xid import Xid, make_gtrid, make_xid


@pytest.mark.parametrize(
    ("life", "known", "outcome"),
    [
        (IncarnationState.FENCED, {}, Vote.ROLLBACK),
        (IncarnationState.ALIVE, {}, Vote.LEAVE_ALONE),
        (IncarnationState.DEAD, {}, Vote.LEAVE_ALONE),
        (None, {}, Vote.LEAVE_ALONE),
        (IncarnationState.ALIVE, {"finished": "gtrid"}, Vote.ROLLBACK),
        (IncarnationState.FENCED, {"decisions": "gtrid"}, Vote.LEAVE_ALONE),
        (IncarnationState.FENCED, {"pointers": "gtrid"}, Vote.LEAVE_ALONE),
    ],
)
def test_one_leave_alone_wins(life: IncarnationState | None, known: dict[str, str], outcome: Vote) -> None:
    xid = make_xid(make_gtrid(NODE, "incarnation0", 1), 0, "a")
    values: dict[str, object] = {
        "finished": frozenset([xid.gtrid]),
        "decisions": {xid.gtrid: Decision(xid.gtrid, ())},
        "pointers": {xid.gtrid: "ledger"},
    }
    evidence = snapshot_of(xid, life, **{name: values[name] for name in known})
    ballot = poll((TransactionLogFilter(), NodeFilter(), IncarnationFilter()), evidence, xid)
    assert ballot.vote is outcome


def test_no_vote_leaves_and_a_filter_of_ones_own_has_a_say() -> None:
    xid = make_xid(make_gtrid(NODE, "incarnation0", 1), 0, "a")
    evidence = snapshot_of(xid, IncarnationState.FENCED)

    class Hold:
        def vote(self, evidence: Snapshot, xid: Xid) -> Ballot | None:
            return Ballot(Vote.LEAVE_ALONE, "not on a Friday")

    assert poll((), evidence, xid).vote is Vote.LEAVE_ALONE
    assert poll((NodeFilter(),), evidence, xid).vote is Vote.ROLLBACK
    assert (
        poll((NodeFilter(),), snapshot_of(xid, IncarnationState.FENCED, nodes={"other"}), xid).vote is Vote.LEAVE_ALONE
    )
    assert poll((NodeFilter(), Hold()), evidence, xid).reason == "not on a Friday"


def test_another_nodes_standing_is_foreign_even_where_the_incarnation_is_known() -> None:
    xid = make_xid(make_gtrid("other", "incarnation0", 1), 0, "a")
    assert snapshot_of(xid, IncarnationState.FENCED).coordinator_state(xid.gtrid) is CoordinatorState.OTHER_NODE


def test_a_filter_of_ones_own_cannot_have_another_nodes_branch_rolled_back() -> None:
    xid = make_xid(make_gtrid("other", "incarnation0", 1), 0, "a")

    class Greedy:
        def vote(self, evidence: Snapshot, xid: Xid) -> Ballot | None:
            return Ballot(Vote.ROLLBACK, "it has been there for an hour")

    assert poll(all_filters([Greedy()]), snapshot_of(xid, IncarnationState.DEAD), xid).vote is Vote.LEAVE_ALONE
