"""What recovery does where a marked datasource decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery import RecoveryManager
from tests.models.recovery import RecoveryWorld, marked, pointed, world_after
from tests.models.recovery_databases import NODE
from txpool import DataSource
from txpool.resources.marked.xids import Xids
from txpool.resources.recovery_access import MarkedRow
from txpool.xid import make_gtrid


def test_16_a_marked_transaction_without_a_row_meets_a_tombstone() -> None:
    world = world_after(marked, "b prepared")
    world.scan()
    assert world.outcomes() == {"rolled back"}
    assert world.is_clean()
    assert "ledger.tombstone" in world.calls.names


def test_16_a_row_whose_transaction_is_open_leaves_everything_undecided(caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(marked, "b prepared", dead=False)
    world.lose()
    report = world.scan()
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    assert {left.datasource for left in report.pending} == {"a", "b"}
    assert "lock timeout" in caplog.text
    world.ledger.commit()
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


def test_14_a_marked_datasource_that_does_not_answer_decides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(marked, "decided")
    world.ledger.reachable = False
    report = world.scan()
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    assert "ledger" in report.unreachable
    assert "ledger" in caplog.text
    caplog.clear()
    world.scan()
    assert not caplog.records, "said before"
    world.ledger.reachable = True
    world.scan()
    assert world.outcomes() == {"committed"}
    world.ledger.reachable = False
    world.scan()
    assert "ledger" in caplog.text, "news again"


def test_a_marked_datasource_that_is_not_configured_decides_nothing() -> None:
    world = world_after(marked, "decided")
    manager = RecoveryManager(log=world.log, datasources=[world.a, world.b], backoff=0)
    report = manager.scan()
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    assert "ledger" in report.pending[0].reason
    assert "not configured" not in {branch.state for each in manager.in_doubt() for branch in each.branches}
    assert all("ledger" in each.next for each in manager.in_doubt())


def test_a_datasource_that_is_open_and_has_the_same_name_decides_nothing(tmp_path: Path) -> None:
    world = world_after(marked, "decided")
    with DataSource("ledger", driver="sqlite3", url=f"sqlite:///{tmp_path}/other.db", mode="cmr") as other:
        Xids("ledger", other.driver_adapter, other.settings.cmr_table).create()
        RecoveryManager(log=world.log, datasources=[world.a, world.b], backoff=0).scan()
        assert len(world.a.prepared) == len(world.b.prepared) == 1


def test_7_a_row_is_kept_while_a_branch_has_not_answered() -> None:
    world = world_after(marked, "decided")
    world.b.reachable = False
    world.scan()
    assert world.ledger.rows
    world.b.reachable, world.b.silent = True, True
    world.scan()
    assert world.ledger.rows
    world.b.silent = False
    world.scan()
    assert world.is_clean()
    assert world.outcomes() == {"committed"}


def test_13_a_tombstone_is_kept_while_any_datasource_has_not_answered() -> None:
    world = world_after(marked, "b prepared")
    world.b.reachable = False
    world.scan()
    assert [row.committed for row in world.ledger.rows.values()] == [False]
    world.b.reachable = True
    world.scan()
    assert world.is_clean()


def test_12_a_row_of_another_node_is_never_touched() -> None:
    world = RecoveryWorld()
    gtrid = make_gtrid("other", world.incarnation, 1)
    world.ledger.rows[gtrid] = MarkedRow(gtrid, "other", True)
    world.die()
    world.scan()
    assert gtrid in world.ledger.rows


def test_8_a_pointer_overrides_the_name_and_is_kept_while_its_row_may_still_commit() -> None:
    world = world_after(pointed, "row inserted", dead=False)
    world.lose()
    world.scan()
    assert world.disk.pointers
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    world.ledger.commit()
    world.scan()
    assert world.outcomes() == {"committed"}
    assert world.is_clean()


def test_8_a_pointer_without_branches_is_resolved_before_it_goes() -> None:
    world = world_after(pointed, "pointed", dead=False)
    world.a.prepared.clear()
    world.b.prepared.clear()
    world.lose()
    world.ledger.open = MarkedRow(world.gtrid, NODE, True)
    world.scan()
    assert world.disk.pointers, "the row's COMMIT may be on its way"
    world.ledger.open = None
    world.scan()
    assert world.is_clean()
