"""XA START that goes ahead of a branch's first statement: where it is refused, or what follows is no good statement."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.resources.mysql.branches import BranchDatabase
from txpool.resources.base import BranchOutcome


@pytest.mark.parametrize("end", ["prepare", "one phase", "rollback", "reset"])
def test_no_session_goes_on_that_has_not_begun_its_branch(world: BranchDatabase, end: str) -> None:
    """Also where XA START goes ahead of the branch's own end, as where no statement was sent."""
    driver: Any = world.driver_of(xa_evidence="row")
    driver.rows.create()
    first = world.prepared_branch()
    branch = world.branch(None, driver=driver)
    raw = world.raws[-1]
    raw.xid, branch.record = first.record.xid, first.record  # somebody else has prepared a branch of that name
    driver.begin(raw)
    if end == "prepare":
        with pytest.raises(world.module.Error) as caught:
            branch.start_prepare()
            branch.await_prepare()
        assert caught.value.args[0] == 1440
        branch.start_rollback()
        assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    elif end == "one phase":
        assert branch.commit_one_phase() is BranchOutcome.ROLLED_BACK
        assert branch.failure is not None
        assert branch.failure.args[0] == 1440
    elif end == "rollback":
        assert branch.rollback() is BranchOutcome.ROLLED_BACK
    else:
        with pytest.raises(world.module.Error):
            driver.reset(raw)
    assert raw.lost, "or a row of the branch could be left in a local transaction of a session that seems clean"
    assert world.server.names() == [first.record.xid.joined]
    first.start_commit()
    assert first.await_commit() is BranchOutcome.COMMITTED
    assert world.rows() == [1]


@pytest.mark.parametrize(
    "statement", ["", " ", ";", "/* nothing */", "-- nothing", "selec 1", "select * from nowhere", "select 1; select 2"]
)
def test_a_first_statement_fails_as_any_other_does(world: BranchDatabase, statement: str) -> None:
    """And leaves the branch open, for the next one."""

    def error_of(raw: Any) -> object:
        try:
            world.execute(statement, raw)
        except world.module.Error as error:
            return error.args
        return None

    later = world.branch()
    expected = error_of(world.raws[-1])
    assert later.rollback() is BranchOutcome.ROLLED_BACK
    branch = world.branch(None)
    assert error_of(world.raws[-1]) == expected
    world.execute("insert into work values (1, 1)")
    assert branch.commit_one_phase() is BranchOutcome.COMMITTED
    assert world.rows() == [1]
