"""The thread, and the configuration."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from recovery import RecoveryManager
from tests.models.recovery import logged, world_after
from tests.models.recovery_databases import NODE
from txpool.config.settings import RecoverySettings
from txpool.errors import ConfigurationError
from txpool.log.base import Heuristic
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import BranchOutcome

COMMITTED, ROLLED_BACK = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK


def test_the_thread_scans_at_once_and_stop_waits_for_the_pass() -> None:
    world = world_after(logged, "decided")
    reached, go = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if world.calls.names[number] == "purge":
            reached.set()
            go.wait()

    world.calls.before = hold
    world.recovery.start()
    world.recovery.start()
    assert reached.wait(30)
    stopper = threading.Thread(target=world.recovery.stop)
    stopper.start()
    assert world.disk.outcomes
    go.set()
    stopper.join()
    assert world.is_clean()
    assert world.recovery.last_report is not None
    world.recovery.stop()


def test_the_thread_outlives_a_scan_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    world = world_after(logged, "decided")
    manager = RecoveryManager(log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0, period=0.001)
    done = threading.Event()

    def fail_once(number: int) -> None:
        if number < 6 and world.calls.names[number] == "incarnations":
            raise OSError("the log is on a bad disk")
        if world.calls.names[number] == "purge":
            done.set()

    world.calls.before = fail_once
    manager.start()
    assert done.wait(30)
    manager.stop()
    assert world.is_clean()
    assert "bad disk" in caplog.text


def test_stop_ends_a_backoff_and_the_orphan_waits_for_the_next_scan() -> None:
    world = world_after(logged, "b prepared")
    manager = RecoveryManager(log=world.log, datasources=[world.a, world.b], backoff=3600, period=3600)
    listed = threading.Event()

    def watch(number: int) -> None:
        if world.calls.names[number] == "decisions":
            listed.set()

    world.calls.before = watch
    manager.start()
    assert listed.wait(30)
    manager.stop()
    assert len(world.a.prepared) == 1
    assert manager.last_report is not None
    world.scan()
    assert world.outcomes() == {"rolled back"}


# -- the configuration --------------------------------------------------------------------------------------------


def test_recovery_needs_a_node_a_log_and_datasources() -> None:
    with pytest.raises(ConfigurationError, match=r"node\.name"):
        RecoveryManager(datasources=[])
    with pytest.raises(ConfigurationError, match="no datasource"):
        RecoveryManager(log=MemoryLog(MemoryDisk(NODE), node=NODE), datasources=[])


def test_a_heuristic_outcome_is_not_noted_twice() -> None:
    world = world_after(logged, "decided")
    world.b.end(world.xid(world.b, 1), ROLLED_BACK)
    world.a.silent = True
    for _ in range(3):
        world.scan()
    assert world.log.heuristics() == [
        Heuristic(world.gtrid, "1:b:L", "b", "commit", "rolled back", pytest.approx(0, abs=1e12))
    ]


def test_the_pools_of_recovery_keep_nothing_open(tmp_path: Path) -> None:
    text = f"driver = sqlite3\nmode = cmr\nurl = sqlite:///{tmp_path}/a.db\npool.min-size = 3"
    (tmp_path / "a.properties").write_text(text)
    settings = RecoverySettings.load(node_name=NODE, log_url="memory:", datasources=[tmp_path / "a.properties"])
    with closing(RecoveryManager(settings)) as manager:
        assert [datasource.statistics().min_size for datasource in manager._configured] == [0]
