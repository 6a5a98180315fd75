"""Filters and scanners that a configuration names; and the two votes that it can never leave out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery import RecoveryManager
from recovery.scan.modules.orphans import (
    FILTERS,
    Ballot,
    IncarnationFilter,
    SubordinateFilter,
    TransactionLogFilter,
    Vote,
    all_filters,
    poll,
)
from recovery.scan.snapshot import CoordinatorState
from tests.models.recovery import RecoveryWorld, logged, marked, snapshot_of, world_after
from tests.models.recovery_databases import NODE
from txpool.config.settings import RecoverySettings
from txpool.errors import ConfigurationError
from txpool.log.base import IncarnationState
from txpool.xid import TaskName, Xid, make_gtrid, make_xid

CLASSES = """
class Hold:
    def vote(self, evidence, xid):
        from recovery.scan.modules.orphans import Ballot, Vote
        return Ballot(Vote.LEAVE_ALONE, "not on a Friday", alarm=True)

class Reckless:
    def vote(self, evidence, xid):
        from recovery.scan.modules.orphans import Ballot, Vote
        return Ballot(Vote.ROLLBACK, "away with it")

class Broken:
    def vote(self, evidence, xid):
        raise RuntimeError("this filter is broken")

class Greedy:
    def expires(self, entry, age, interval):
        return True

class NeedsMuch:
    def __init__(self, much):
        pass
"""


@pytest.fixture
def classes(tmp_path: Path) -> Iterator[str]:
    """The name of a user's module."""
    (tmp_path / "operators_own.py").write_text(CLASSES)
    sys.path.insert(0, str(tmp_path))
    yield "operators_own"
    sys.path.remove(str(tmp_path))
    sys.modules.pop("operators_own", None)


def manager(world: RecoveryWorld, **options: str) -> RecoveryManager:
    settings = RecoverySettings.load(None, **options)
    return RecoveryManager(settings, log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0)


def spark_xid(incarnation: str = "incarnation0") -> Xid:
    return make_xid(make_gtrid(NODE, incarnation, 1), 0, "a", task=TaskName(0, 3, 7, 1))


# -- what always votes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["node", "subordinate", "node, subordinate", "operators_own.Reckless"])
@pytest.mark.parametrize("steps", [logged, marked])
def test_no_configuration_leaves_out_what_keeps_a_decision_and_a_living_process_safe(
    names: str, steps: object, classes: str
) -> None:
    for last, dead, outcome in (("decided", True, {"committed"}), ("b prepared", False, set())):
        world = world_after(steps, last, dead=dead)
        recovery = manager(world, recovery_orphan_filters=names)
        recovery.scan()
        recovery.scan()
        assert world.outcomes() - outcome == set()
        if not dead:
            assert len(world.a.prepared) == len(world.b.prepared) == 1


@pytest.mark.parametrize("life", [IncarnationState.ALIVE, IncarnationState.DEAD, None])
def test_a_reckless_vote_loses_against_the_incarnations(life: IncarnationState | None) -> None:
    class Reckless:
        def vote(self, evidence: object, xid: Xid) -> Ballot:
            return Ballot(Vote.ROLLBACK, "away with it")

    xid = spark_xid()
    assert poll(all_filters([Reckless()]), snapshot_of(xid, life), xid).vote is Vote.LEAVE_ALONE


def test_the_two_vote_once_whether_they_are_named_or_not() -> None:
    every = [FILTERS[name]() for name in ("incarnation", "transaction-log", "node", "subordinate")]
    for named in ([], every):
        kinds = [type(voter) for voter in all_filters(named)]
        assert kinds.count(IncarnationFilter) == kinds.count(TransactionLogFilter) == 1
        assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("kind", [TransactionLogFilter, IncarnationFilter])
def test_one_that_extends_one_of_the_two_has_its_say_besides(kind: type) -> None:
    class Careful(kind):  # type: ignore[misc]
        def vote(self, evidence: object, xid: Xid) -> Ballot:
            return Ballot(Vote.LEAVE_ALONE, "not at night")

    xid = spark_xid()
    assert poll(all_filters([Careful()]), snapshot_of(xid, IncarnationState.FENCED), xid).reason == "not at night"


# -- subordinate --------------------------------------------------------------------------------------------------


def test_a_spark_tasks_work_is_left_alone_while_its_driver_lives() -> None:
    xid = spark_xid()
    ballot = poll(all_filters([SubordinateFilter()]), snapshot_of(xid, IncarnationState.ALIVE), xid)
    assert (ballot.vote, ballot.alarm) == (Vote.LEAVE_ALONE, False)
    assert "Spark task (partition 3, attempt 7)" in ballot.reason
    plain = make_xid(xid.gtrid, 0, "a")
    assert SubordinateFilter().vote(snapshot_of(plain, IncarnationState.ALIVE), plain) is None


@pytest.mark.parametrize(("life", "finished"), [(IncarnationState.FENCED, False), (IncarnationState.ALIVE, True)])
def test_it_is_swept_once_its_driver_is_fenced_or_has_let_go_of_it(life: IncarnationState, finished: bool) -> None:
    xid = spark_xid()
    evidence = snapshot_of(xid, life, finished=frozenset([xid.gtrid] if finished else []))
    assert evidence.coordinator_state(xid.gtrid) in (CoordinatorState.FENCED, CoordinatorState.FINISHED)
    assert poll(all_filters([SubordinateFilter()]), evidence, xid).vote is Vote.ROLLBACK


# -- a user's own -------------------------------------------------------------------------------------------------


def test_a_class_of_ones_own_has_a_say_and_its_alarm_is_heard(classes: str, caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(logged, "b prepared")
    recovery = manager(world, recovery_orphan_filters=f"node, {classes}.Hold")
    report = recovery.scan()
    assert {left.reason for left in report.pending} == {"not on a Friday"}
    assert len(world.a.prepared) == 1
    assert caplog.text.count("not on a Friday") == 2
    recovery.scan()
    assert caplog.text.count("not on a Friday") == 2, "it is no news"


def test_a_filter_that_fails_leaves_the_branch_alone_and_the_rest_goes_on(classes: str) -> None:
    world = world_after(logged, "b prepared")
    report = manager(world, recovery_orphan_filters=f"{classes}.Broken").scan()
    assert any("this filter is broken" in text for text in report.errors.values())
    assert len(world.a.prepared) == len(world.b.prepared) == 1


def test_a_scanner_of_ones_own_chooses_only_among_what_may_expire(classes: str) -> None:
    world = world_after(logged, "decided")
    world.a.silent = True
    recovery = manager(world, recovery_expiry_scanners=f"{classes}.Greedy")
    for _ in range(3):
        assert recovery.scan().expired == ()
    world.a.silent = False
    recovery.scan()
    assert recovery.scan().expired == (f"incarnation {world.incarnation}",)
    assert world.outcomes() == {"committed"}


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("nod", "did you mean node"),
        ("nothing.like.This", "could not be made: ModuleNotFoundError"),
        ("operators_own.Missing", "could not be made: AttributeError"),
        ("operators_own.NeedsMuch", "could not be made: TypeError"),
        ("operators_own.Greedy", r"has no method vote\(\)"),
        ("node,", "is not right"),
        ("no de", "is not right"),
    ],
)
def test_a_name_that_leads_nowhere_is_an_error_of_configuration(names: str, problem: str, classes: str) -> None:
    with pytest.raises(ConfigurationError, match=f"recovery.orphan.filters.*{problem}"):
        manager(RecoveryWorld(), recovery_orphan_filters=names)


@pytest.mark.parametrize("key", ["recovery.orphan-filters", "recovery.expiry.scanners"])
def test_a_file_that_names_a_class_must_not_be_writable_by_others(tmp_path: Path, classes: str, key: str) -> None:
    conf = tmp_path / "recovery.properties"
    world = RecoveryWorld()
    for names, mode, refused in (("Hold", 0o664, True), ("Hold", 0o644, False), ("", 0o666, False)):
        own = {"recovery.orphan-filters": "Hold", "recovery.expiry.scanners": "Greedy"}[key]
        house = {"recovery.orphan-filters": "node", "recovery.expiry.scanners": "incarnation"}[key]
        conf.write_text(f"{key} = {f'{classes}.{own}' if names else house}\n")
        conf.chmod(mode)
        make = lambda: RecoveryManager(conf, log=world.log, datasources=[world.a])
        if refused:
            with pytest.raises(ConfigurationError, match=r"others can write to .*: chmod go-w"):
                make()
        else:
            make()
    if os.geteuid() == 0:  # root can give a file away
        conf.write_text(f"{key} = {classes}.{own}\n")
        conf.chmod(0o644)
        os.chown(conf, 65534, -1)
        with pytest.raises(ConfigurationError, match=f"{conf} belongs to .*, who can change it"):
            make()
