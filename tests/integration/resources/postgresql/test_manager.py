"""The resource manager: what it lists, and what an absent branch means."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from tests.integration.resources.postgresql.branches import BranchDatabase, driver_of, new_xid
from txpool.config.secrets import Secret
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.postgresql.branches import recovery
from txpool.resources.postgresql.branches.recovery import PostgreSQLBranchRecovery


def test_recover_lists_ours_and_tells_those_of_other_databases_of_the_server(world: BranchDatabase) -> None:
    world.databases.execute("two", "create table work (id int)")
    other = BranchDatabase(world.databases, "two")
    here, there = world.prepared_branch(), other.prepared_branch()
    with closing(world.driver.connect()) as stranger:
        stranger.execute("insert into work values (9)")
        stranger.execute("prepare transaction 'txp1:somebody:else'")
    manager = PostgreSQLBranchRecovery("one", world.driver)
    found, elsewhere = manager.recover()
    assert found.xid == here.record.xid
    assert (found.elsewhere, found.database) == ("", "")
    assert elsewhere.xid == there.record.xid
    assert (elsewhere.elsewhere, elsewhere.database) == (there.record.identity, "two")
    assert found.age is not None
    assert found.age >= 0
    assert manager.identity() == here.record.identity
    # "Belongs to another database" is not "absent".
    assert manager.commit(there.record) is BranchOutcome.UNKNOWN
    assert len(world.databases.prepared()) == 3
    other.raw.close()


def test_very_many_are_listed_a_part_at_a_time(world: BranchDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_FETCH", "fetch 2 from txpool_prepared")
    branches = [BranchDatabase(world.databases, "one") for _ in range(5)]
    expected = [
        each.prepared_branch(f"insert into work values ({number})").record.xid for number, each in enumerate(branches)
    ]
    manager = PostgreSQLBranchRecovery("one", world.driver)
    assert [each.xid for each in manager.recover()] == expected
    with manager.connected() as access:
        assert [each.xid for each in access.each_prepared()] == expected
        assert [each.xid for each in access.each_prepared()] == expected
    for each in branches:
        each.raw.close()


def test_absent_without_evidence_is_lost(world: BranchDatabase) -> None:
    manager = PostgreSQLBranchRecovery("one", world.driver)
    record = BranchRecord(new_xid(), "one")
    assert manager.commit(record) is BranchOutcome.LOST
    assert manager.rollback(record) is BranchOutcome.LOST


def test_absent_is_not_believed_on_another_server_or_timeline(world: BranchDatabase) -> None:
    branch = world.prepared_branch()
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
    manager = PostgreSQLBranchRecovery("one", world.driver)
    record = branch.record
    assert manager.commit(record) is BranchOutcome.COMMITTED
    elsewhere = BranchRecord(record.xid, "one", "1/one", record.evidence)
    assert manager.commit(elsewhere) is BranchOutcome.UNKNOWN
    branched_off = {**record.evidence, "timeline": "00000007"}
    assert manager.commit(BranchRecord(record.xid, "one", record.identity, branched_off)) is BranchOutcome.LOST
    future = {**record.evidence, "xid": str(int(record.evidence["xid"]) + 10**9)}
    assert manager.commit(BranchRecord(record.xid, "one", record.identity, future)) is BranchOutcome.LOST


def test_transaction_that_wrote_nothing_has_every_ending(world: BranchDatabase) -> None:
    branch = world.prepared_branch("select * from work")
    with psycopg.connect(world.databases.dsn("one"), autocommit=True) as dba:
        dba.execute(f"rollback prepared '{branch.record.xid.joined}'")
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED


def test_role_that_may_not_finish_a_branch_has_not_answered(world: BranchDatabase) -> None:
    world.databases.execute("one", "drop role if exists guest; create role guest login password 'guest'")
    branch = world.prepared_branch()
    guest = driver_of(
        world.databases, "one", url=world.databases.url("one").replace("txpool@", "guest@"), password=Secret("guest")
    )
    manager = PostgreSQLBranchRecovery("one", guest)
    assert manager.commit(branch.record) is BranchOutcome.UNKNOWN
    assert [b.xid for b in manager.recover()] == [branch.record.xid]
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
