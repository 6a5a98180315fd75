"""Recovery's connections keep to the step of the pass: what is overdue is left to the next pass, and not sent again."""

from __future__ import annotations

import logging
from contextlib import closing
from time import monotonic

import pytest

from tests.integration.resources.mysql.branches import BranchDatabase
from tests.support.mysql_proxy import Fault
from txpool.errors import OperationalError
from txpool.resources.base import BranchOutcome
from txpool.resources.branches import adopted
from txpool.resources.deadlines import step_until
from txpool.resources.mysql.branches.phase_two import MySQLPhaseTwo
from txpool.resources.mysql.branches.recovery import MySQLBranchRecovery

#: Seconds that nothing here takes.
_LONG = 600.0


def test_nothing_is_sent_once_the_step_is_over(world: BranchDatabase) -> None:
    with step_until(monotonic() + _LONG):
        raw = world.driver.connect()
    with closing(raw), step_until(monotonic()), pytest.raises(OperationalError, match="nothing more is sent"):
        raw.session.send("insert into work (id) values (1)")
    assert world.rows() == []


def test_many_branches_end_over_several_connections(world: BranchDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopted, "BRANCHES_EACH", 2)
    records = []
    for _ in range(9):
        records.append(world.prepared_branch(f"insert into work (id) values ({len(records)})").record)
        world.raws[-1].break_off()
    opened: list[object] = []
    connect = world.driver.connect
    monkeypatch.setattr(world.driver, "connect", lambda timeout=None: opened.append(timeout) or connect(timeout))
    shared = adopted.PhaseTwoConnections(MySQLPhaseTwo, world.driver)
    branches = [shared.branch(record) for record in records]
    for branch in branches:
        branch.start_commit()
    assert [branch.await_commit() for branch in branches] == [BranchOutcome.COMMITTED] * 9
    assert len(opened) > 1
    assert world.rows() == list(range(9))
    assert world.recovery.recover() == []


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_command_without_an_answer_is_not_sent_again_past_its_step(
    world: BranchDatabase, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    record = world.prepared_branch().record
    world.raws[-1].break_off()
    proxy = world.proxy()
    recovery = MySQLBranchRecovery(world.driver_of(port=proxy.port))
    proxy.fail_at(f"xa {verb}".encode(), Fault.SILENT)
    branch = recovery.phase_two().branch(record)
    with step_until(monotonic() + _LONG):
        getattr(branch, f"start_{verb}")()
    assert proxy.failed.wait(_LONG)
    with caplog.at_level(logging.INFO, "txpool"), step_until(monotonic() + 0.1):
        assert getattr(branch, f"await_{verb}")() is BranchOutcome.UNKNOWN
    assert "left to recovery: " in recovery.why_not(record)
    assert "tried again" not in caplog.text
    assert {each.levelno for each in caplog.records} == {logging.INFO}
    assert [each.xid for each in world.recovery.recover()] == [record.xid]
    assert world.recovery.commit(record) is BranchOutcome.COMMITTED
    assert world.rows() == [1]
