"""Staging tables in the databases of marked datasources: what their sweep may say about who decides, and may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery import RecoveryManager
from tests.models.recovery import RecoveryWorld, logged, marked, pointed, snapshot_of, world_after
from tests.models.recovery_databases import NODE, ModelDatabase, ModelLedger
from txpool.log.base import Decision, IncarnationState
from txpool.resources.base import BranchRecord
from txpool.resources.postgresql.tables.staging import PostgreSQLStagingTable
from txpool.resources.recovery_access import MarkedRow
from txpool.xid import Xid, make_gtrid, make_xid


class Tables:
    """The staging tables of one database, whichever datasources lead to it."""

    def __init__(self, *tables: PostgreSQLStagingTable) -> None:
        self.here = list(tables)

    def tables(self) -> list[PostgreSQLStagingTable]:
        return list(self.here)

    def drop(self, table: PostgreSQLStagingTable) -> None:
        if table in self.here:
            self.here.remove(table)


class StagedDatabase(ModelDatabase):
    """One that a Spark write has staged rows in."""

    shared: Tables

    def staging(self, *, lock_timeout: float) -> Tables:
        return self.shared


class StagedLedger(ModelLedger):
    """A marked datasource of the same database."""

    shared: Tables

    def staging(self, *, lock_timeout: float) -> Tables:
        return self.shared


def staged(world: RecoveryWorld) -> Tables:
    """A table that this transaction has left, in a database that an xa and two marked datasources lead to."""
    shared = Tables(PostgreSQLStagingTable(world.gtrid, 0))
    a, archive, ledger = (
        StagedDatabase("a", world.calls),
        StagedLedger("archive", world.calls),
        StagedLedger("ledger", world.calls),
    )
    a.prepared, ledger.rows = world.a.prepared, world.ledger.rows
    a.shared = archive.shared = ledger.shared = shared
    world.a, world.ledger = a, ledger
    world.recovery = RecoveryManager(log=world.log, datasources=[a, world.b, archive, ledger], backoff=0)
    return shared


@pytest.mark.parametrize("b", ["silent", "unreachable"])
@pytest.mark.parametrize("steps", [logged, marked, pointed])
def test_the_sweep_lays_no_tombstone_beside_a_decision(steps: object, b: str) -> None:
    world = world_after(steps, "decided")
    shared = staged(world)
    world.b.silent, world.b.reachable = b == "silent", b != "unreachable"
    world.scan()
    assert "archive.tombstone" not in world.calls.names
    assert steps is not logged or "ledger.tombstone" not in world.calls.names
    world.b.silent, world.b.reachable = False, True
    for _ in range(3):
        world.scan()
    assert world.outcomes() == {"committed"}
    assert shared.here == []
    assert world.is_clean()


def test_what_nobody_has_decided_gets_a_tombstone_wherever_it_might_still_be() -> None:
    world = RecoveryWorld()
    shared = staged(world)
    world.die()
    assert not world.scan().errors
    assert shared.here == []
    assert {"archive.tombstone", "ledger.tombstone"} <= set(world.calls.names)
    for _ in range(3):
        world.scan()
    assert world.is_clean()
    assert not world.recovery.in_doubt()


@pytest.mark.parametrize("ledger", ["answers", "is down"])
def test_a_commit_that_lands_beside_anothers_tombstone_is_what_decides(ledger: str) -> None:
    """Its row is in flight, and its branch too, while the sweep finds nothing: then both land."""
    world = RecoveryWorld()
    shared = staged(world)
    xid = world.xid(world.b, 1, marked=True)
    world.ledger.mark(world.gtrid, [BranchRecord(xid, "b", world.b.server)])
    world.lose()
    assert any("lock timeout" in text for text in world.scan().errors.values())
    world.b.prepare(xid)
    world.ledger.commit()
    world.ledger.reachable = ledger == "answers"
    world.scan()
    world.ledger.reachable = True
    for _ in range(3):
        world.scan()
    assert world.outcomes() == {"committed"}
    assert shared.here == []
    assert world.is_clean()


def test_it_is_dropped_behind_a_living_process_that_has_let_go_of_it_without_a_tombstone() -> None:
    world = RecoveryWorld()
    shared = staged(world)
    world.disk.finished.add(world.gtrid)
    world.scan()
    assert shared.here == []
    assert not {"archive.tombstone", "ledger.tombstone"} & set(world.calls.names)


@pytest.mark.parametrize("steps", [None, logged, marked])
def test_31_what_somebody_else_has_prepared_keeps_no_staging_table(steps: object) -> None:
    world = RecoveryWorld() if steps is None else world_after(steps, "decided")  # type: ignore[arg-type]
    shared = staged(world)
    forged = [Xid(world.gtrid, "9:a:M.nosuch"), Xid(world.gtrid, "8:a:M.ledger")]
    world.a.forged = dict.fromkeys(forged, frozenset({"mallory"}))
    world.die()
    for _ in range(4):
        assert not world.scan().errors
    assert shared.here == []
    assert "archive.tombstone" not in world.calls.names or steps is None
    assert list(world.a.forged) == forged
    assert world.is_clean()


def test_a_tombstone_decides_only_where_nothing_else_does() -> None:
    xid = make_xid(make_gtrid(NODE, "incarnation0", 1), 0, "a")
    gtrid = xid.gtrid
    dead, row = MarkedRow(gtrid, NODE, False), MarkedRow(gtrid, NODE, True)
    alone = snapshot_of(xid, IncarnationState.FENCED, rows={"archive": {gtrid: dead}, "ledger": {}})
    assert (alone.marked_by(gtrid), alone.row(gtrid)) == ("archive", dead)
    decided = replace(alone, decisions={gtrid: Decision(gtrid, ())})
    assert (decided.marked_by(gtrid), decided.row(gtrid)) == (None, None)
    met = replace(alone, rows={"archive": {gtrid: dead}, "ledger": {gtrid: row}})
    assert (met.marked_by(gtrid), met.row(gtrid)) == ("ledger", row)
    pointing = replace(alone, pointers={gtrid: "ledger"})
    assert (pointing.marked_by(gtrid), pointing.row(gtrid)) == ("ledger", None)
    named = make_xid(gtrid, 0, "a", decider="ledger")
    naming = snapshot_of(named, IncarnationState.FENCED, rows=alone.rows, tags={named.decider: "ledger"})
    assert (naming.marked_by(gtrid), naming.row(gtrid)) == ("ledger", None)


def test_a_database_that_goes_away_amid_the_pass_keeps_only_what_it_has_to_be_asked_of() -> None:
    world = RecoveryWorld()
    shared = staged(world)
    unprepared = PostgreSQLStagingTable(make_gtrid(NODE, world.incarnation, 2), 0)
    shared.here.append(unprepared)
    world.ledger.shared = Tables()  # type: ignore[attr-defined]
    world.recovery = world.recoverer()
    world.b.prepare(world.xid(world.b, 1))
    world.b.silent = True
    world.die()

    def go_away(number: int) -> None:
        world.a.reachable = world.calls.names.count("a.identity") < 2

    world.calls.before = go_away
    report = world.scan()
    assert [name for name in report.errors if unprepared.name in name or "module" in name] == []
    assert [table.gtrid for table in shared.here] == [world.gtrid]
