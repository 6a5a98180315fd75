"""The demo's job, killed at each step of its commit and of its recovery: all of it landed, or none of it."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import Count, Evidence
from tests.support import preloaded
from txpool.demo.folder import Counts, DemoFolder

if TYPE_CHECKING:
    from tests.conftest import Require

ROWS = 300
_runs = itertools.count(100)
NOTHING = Counts(0, 0, 0)
ALL = Counts(ROWS, ROWS, ROWS)


@pytest.fixture(scope="module")
def stage(require: Require) -> Iterator[DemoFolder]:
    """One stage for all runs, each of which has a number of its own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        stage = DemoFolder(Path(folder))
        stage.build()
        assert _recovery(stage, "init") == 0
        yield stage
        stage.close()


@pytest.fixture(autouse=True)
def nothing_stays(stage: DemoFolder, eventually: Eventually) -> None:
    dsns = [stage.server.dsn(name) for name in ("flights", "totals")]
    conf = stage.conf / "recovery.properties"
    eventually.in_the(places.of_files(conf, log="../txlog", marked=["../ledger.db"], dsns=dsns))


def _child(stage: DemoFolder, failpoints: str, *command: str) -> int:
    environment = os.environ | {"TXPOOL_FAILPOINTS": failpoints}
    return preloaded.run("-m", *command, cwd=Path.cwd(), env=environment).returncode


def _job(stage: DemoFolder, run: int, failpoints: str) -> int:
    return _child(stage, failpoints, "txpool.demo.job", str(stage.folder), str(run), "--rows", str(ROWS), "--no-spark")


def _recovery(stage: DemoFolder, command: str, failpoints: str = "") -> int:
    return _child(stage, failpoints, "recovery", command, "--conf", str(stage.conf / "recovery.properties"))


@pytest.mark.parametrize(
    ("run", "point", "prepared", "left"),
    [
        (1, "coordinator.begin", 0, NOTHING),
        (2, "coordinator.marked", 0, NOTHING),
        (3, "branch.prepare-sent", None, NOTHING),
        (4, "coordinator.prepared", 2, NOTHING),
        (5, "marked.commit", 2, NOTHING),
        (6, "marked.committed", 2, ALL),
        (7, "coordinator.decided", 2, ALL),
        (8, "branch.commit-sent", None, ALL),
        (9, "coordinator.one-committed", None, ALL),
        (10, "coordinator.committed", 0, ALL),
    ],
)
def test_killed_in_its_commit(
    stage: DemoFolder, run: int, point: str, prepared: int | None, left: Counts, evidence: Evidence
) -> None:
    assert _job(stage, run, f"{point}=kill") == -signal.SIGKILL
    if prepared is not None:
        assert stage.prepared() == prepared
    assert _recovery(stage, "scan") == 0
    assert stage.prepared() == 0
    assert stage.count(run) == left
    assert _recovery(stage, "scan") == 0
    assert stage.count(run) == left
    evidence.hit([point])
    evidence.add(Count.KILLS)


@pytest.mark.parametrize("outcome", ["coordinator.prepared", "coordinator.decided"])
@pytest.mark.parametrize(
    "point",
    [
        "recovery.listed",
        "recovery.fenced",
        "recovery.read",
        "recovery.tombstone",
        "recovery.branch",
        "branch.commit-sent",
        "branch.rollback-sent",
        "recovery.forget",
    ],
)
def test_killed_again_in_its_recovery(stage: DemoFolder, outcome: str, point: str, evidence: Evidence) -> None:
    run = next(_runs)
    assert _job(stage, run, f"{outcome}=kill") == -signal.SIGKILL
    ended = _recovery(stage, "scan", f"{point}=kill")
    not_on_the_way = {"coordinator.prepared": "branch.commit-sent", "coordinator.decided": "branch.rollback-sent"}
    assert ended == (0 if point == not_on_the_way[outcome] else -signal.SIGKILL)
    assert _recovery(stage, "scan") == 0
    assert stage.prepared() == 0
    assert stage.count(run) == (NOTHING if outcome == "coordinator.prepared" else ALL)
    evidence.hit([outcome] if ended == 0 else [outcome, point])
    evidence.add(Count.KILLS, 1 + (ended != 0))


def test_nobody_kills_it(stage: DemoFolder) -> None:
    assert _job(stage, 99, "") == 0
    assert stage.prepared() == 0
    assert stage.count(99) == ALL
