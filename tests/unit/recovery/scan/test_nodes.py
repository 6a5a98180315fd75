"""Whose transactions recovery ends: its own node's, or those of the nodes that it was given."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recovery import RecoveryManager
from recovery.operator.alarms import unconfigured
from recovery.scan import saved
from recovery.scan.modules.orphans import NodeFilter, Vote
from tests.models.recovery import RecoveryWorld, logged, marked, pointed, snapshot_of, unaccounted
from tests.models.recovery_databases import NODE
from txpool.config.settings import RecoverySettings
from txpool.errors import ConfigurationError, ProgrammingError
from txpool.log.base import IncarnationState
from txpool.log.locations import LocationNote
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import PrepareLocation
from txpool.xid import make_gtrid, make_xid

OTHER = "etl-2"
STEPS = [
    (logged, "b prepared", "rolled back"),
    (logged, "decided", "committed"),
    (marked, "b prepared", "rolled back"),
    (marked, "decided", "committed"),
    (pointed, "row inserted", "rolled back"),
    (pointed, "decided", "committed"),
    (unaccounted, "finished", "committed"),
]


def world_of(node: str, steps: object, last: str, *, ours: set[str], dead: bool = True) -> RecoveryWorld:
    """A world in which a coordinator of that node has come as far as the step called `last`."""
    world = RecoveryWorld()
    world.gtrid = make_gtrid(node, world.incarnation, 1)
    world.log.ours = frozenset(ours)
    running = steps(world)  # type: ignore[operator]
    while next(running) != last:
        pass
    if dead:
        world.die()
    return world


def everything(world: RecoveryWorld) -> tuple[object, ...]:
    """All that recovery could end or forget."""
    disk = world.disk
    found = (world.a.prepared, world.b.prepared, world.ledger.rows, disk.outcomes, disk.pointers, disk.finished)
    return tuple(each.copy() for each in found)


@pytest.mark.parametrize(("steps", "last", "outcome"), STEPS)
@pytest.mark.parametrize("ours", [{OTHER}, {NODE, OTHER}], ids=["it alone", "both"])
def test_another_nodes_transaction_ends_where_that_node_is_ours_too(
    ours: set[str], steps: object, last: str, outcome: str
) -> None:
    world = world_of(OTHER, steps, last, ours=ours)
    report = world.scan()
    assert not report.errors
    assert not report.left_alone
    assert world.outcomes() == {outcome}
    assert world.is_clean()


@pytest.mark.parametrize(("steps", "last"), [step[:2] for step in STEPS])
@pytest.mark.parametrize(("node", "ours"), [(OTHER, {NODE}), (NODE, {OTHER}), (OTHER, {NODE, "etl-20"})])
def test_it_is_left_alone_where_it_is_not(node: str, ours: set[str], steps: object, last: str) -> None:
    world = world_of(node, steps, last, ours=ours)
    before = everything(world)
    report = world.scan()
    world.scan()
    assert everything(world) == before
    assert not report.pending, "that is its own recovery's"
    assert not report.forgotten


@pytest.mark.parametrize("last", ["b prepared", "decided", "a ended"])
def test_a_living_process_of_another_node_is_left_alone_too(last: str) -> None:
    world = world_of(OTHER, logged, last, ours={NODE, OTHER}, dead=False)
    before = everything(world)
    report = world.scan()
    assert everything(world) == before
    assert not report.pending


def test_the_filter_of_nodes_knows_those_of_the_pass() -> None:
    xid = make_xid(make_gtrid(OTHER, "incarnation0", 1), 0, "a")
    assert NodeFilter().vote(snapshot_of(xid, IncarnationState.FENCED), xid) is None
    ballot = NodeFilter().vote(snapshot_of(xid, IncarnationState.FENCED, nodes=frozenset({NODE, OTHER})), xid)
    assert ballot is not None
    assert ballot.vote is Vote.ROLLBACK


@pytest.mark.parametrize("suspended", [NODE, OTHER])
def test_who_recovers_several_nodes_stops_while_one_of_them_is_suspended(suspended: str) -> None:
    world = world_of(NODE, logged, "decided", ours={suspended})
    assert world.recovery.suspend("the disk is replaced").node == suspended
    world.log.ours = frozenset({NODE, OTHER})
    assert suspended in world.scan().suspended
    assert world.recovery.suspend("and both").node == suspended, "the first one stands"
    world.log.ours = frozenset({suspended})
    assert world.recovery.resume()
    world.log.ours = frozenset({NODE, OTHER})
    assert world.scan().suspended
    assert world.disk.outcomes
    assert world.recovery.resume()
    assert not world.scan().suspended
    assert world.is_clean()


# -- by hand ------------------------------------------------------------------------------------------------------


def test_by_hand_only_what_is_ours() -> None:
    world = world_of(OTHER, logged, "b prepared", ours={NODE})
    for act in (world.recovery.rollback, world.recovery.commit):
        with pytest.raises(ProgrammingError, match=f"node {OTHER}, and this recovers {NODE}: nothing was done"):
            act(world.gtrid)
    assert len(world.a.prepared) == len(world.b.prepared) == 1
    world.log.ours = frozenset({NODE, OTHER})
    world.recovery.rollback(world.gtrid)
    assert world.outcomes() == {"rolled back"}


def test_the_list_says_whose_it_is() -> None:
    world = world_of(OTHER, logged, "decided", ours={NODE})
    (theirs,) = world.recovery.in_doubt()
    assert "another node" in theirs.next
    assert not theirs.attention
    world.log.ours = frozenset({OTHER})
    (ours,) = world.recovery.in_doubt()
    assert ours == world.recovery.show(world.gtrid)
    assert "commit: it is decided in the log" in ours.next
    assert ours.attention


# -- the key ------------------------------------------------------------------------------------------------------

_SHARED = {"node_name": NODE, "log_url": "postgresql://txpool@localhost/txlog"}


@pytest.mark.parametrize(
    ("value", "nodes"), [(None, ()), ("*", ("*",)), ("etl-2", ("etl-2",)), ("etl-1 ,etl-2", ("etl-1", "etl-2"))]
)
def test_the_key_names_nodes(value: str | None, nodes: tuple[str, ...]) -> None:
    assert RecoverySettings.load(**_SHARED, recovery_nodes=value).recovery_nodes == nodes


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("etl-1, *", r"names nodes beside \*.*one or the other"),
        ("etl-1, , etl-2", r"is not right: write \* alone, or names of nodes, with commas"),
        ("etl 1", "is not right"),
        ("etl-*", "is not right"),
        ("a" * 29, "is not right"),
    ],
)
def test_what_is_wrong_with_it_is_said_with_file_and_line(tmp_path: Path, value: str, said: str) -> None:
    file = tmp_path / "recovery.properties"
    file.write_text(f"node.name = etl-1\nlog.url = {_SHARED['log_url']}\nrecovery.nodes = {value}\n")
    with pytest.raises(ConfigurationError, match=rf"recovery\.properties:3: recovery\.nodes.* {said}"):
        RecoverySettings.load(file)


def test_a_log_in_a_folder_is_one_nodes_alone(tmp_path: Path) -> None:
    file = tmp_path / "recovery.properties"
    file.write_text("node.name = etl-1\nlog.url = sqlite:///txlog\nrecovery.nodes = etl-1, etl-2\n")
    with pytest.raises(ConfigurationError, match=r"recovery\.properties:3: .*etl-2: .*which is etl-1.*postgresql://"):
        RecoverySettings.load(file)
    for right in ("*", "etl-1"):
        settings = RecoverySettings.load(node_name=NODE, log_url=f"sqlite:///{tmp_path}/txlog", recovery_nodes=right)
        assert settings.recovery_nodes == (right,)


def test_the_manager_says_whom_it_recovers() -> None:
    world = RecoveryWorld()
    named = RecoveryManager(RecoverySettings.load(**_SHARED, recovery_nodes="etl-2, etl-3"), datasources=[world.a])
    assert "etl-2, etl-3" in repr(named)
    every = RecoveryManager(RecoverySettings.load(**_SHARED, recovery_nodes="*"), datasources=[world.a])
    assert "every node" in repr(every)
    assert NODE in repr(RecoveryManager(RecoverySettings.load(**_SHARED), datasources=[world.a]))


def test_what_another_node_could_not_end_is_for_its_own_recovery_to_keep() -> None:
    """Two recoverers of one log would drop, and write, each other's in turn with each scan."""
    log = MemoryLog(MemoryDisk(NODE), node=NODE)
    gids = [make_xid(make_gtrid(node, "0123456789ab", 1), 0, "a").joined for node in (NODE, OTHER)]
    saved.save_errors(log, dict.fromkeys(gids, "permission denied"))
    saved.save_errors(log, {})
    assert saved.read(log).errors == {gids[1]: "permission denied"}


def test_databases_that_two_nodes_call_the_same_are_both_told() -> None:
    notes = {LocationNote(node, PrepareLocation("a", f"{node}/1", "7")): f"no file of {node}" for node in (NODE, OTHER)}
    notes |= {LocationNote(NODE, PrepareLocation("a", f"{NODE}/1", "8")): f"no file of {NODE}"}
    elsewhere = [SimpleNamespace(identity="third/1", database="a")]
    evidence: Any = SimpleNamespace(unconfigured={}, unreached=notes, elsewhere=elsewhere)
    (alarm,) = unconfigured(evidence)
    assert alarm.subject == "a"
    assert alarm.text.count(f"no file of {NODE}") == 1, "though it prepares there as two roles"
    assert all(each in alarm.text for each in (f"no file of {NODE}", f"no file of {OTHER}", "third/1"))
