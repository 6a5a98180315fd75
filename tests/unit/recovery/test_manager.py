"""The thread, and the configuration."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from recovery import RecoveryManager
from tests.models.recovery import logged, world_after
from tests.models.recovery_databases import NODE, ModelDatabase
from txpool.config.settings import RecoverySettings
from txpool.datasource import DataSource
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
    assert reached.wait(60)
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
    assert done.wait(60)
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
    assert listed.wait(60)
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


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "orders.properties").write_text("driver = sqlite3\nmode = cmr\nurl = sqlite:///orders.db\n")
    conf = tmp_path / "recovery.properties"
    conf.write_text("node.name = etl-1\nlog.url = sqlite:///txlog\ndatasources = orders.properties\n")
    return conf


def test_datasources_are_added_to_those_of_the_file(conf: Path) -> None:
    with DataSource("ledger", driver="sqlite3", mode="cmr", url=f"sqlite:///{conf.parent}/ledger.db") as ledger:
        with closing(RecoveryManager(conf, datasources=[ledger])) as manager:
            assert ": orders, ledger, " in repr(manager)
        with closing(RecoveryManager(conf, datasources=[])) as manager:
            assert ": orders, " in repr(manager)
        ledger.connect().close()  # the manager closes what it has opened, and no other


def test_a_datasource_of_the_same_name_is_the_same_or_an_error(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{conf.parent}"
    with (
        DataSource("orders", driver="sqlite3", mode="cmr", url=f"{url}/orders.db") as same,
        DataSource("orders", driver="sqlite3", mode="cmr", url=f"{url}/other.db") as other,
    ):
        with closing(RecoveryManager(conf, datasources=[same])) as manager:
            assert ": orders, every" in repr(manager)
        for datasources in ([other], [same, other]):
            with pytest.raises(ConfigurationError, match="two datasources are called orders, sqlite:///"):
                RecoveryManager(conf, datasources=datasources)
        # Without a file, those that are given are all.
        monkeypatch.setenv("TXPOOL_DATASOURCES", str(conf.parent / "orders.properties"))
        log = MemoryLog(MemoryDisk(NODE), node=NODE)
        with closing(RecoveryManager(log=log, datasources=[other])) as manager:
            assert ": orders, every" in repr(manager)


def test_two_files_of_one_name_are_an_error(conf: Path) -> None:
    (conf.parent / "copy.properties").write_text("name = orders\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///b.db\n")
    conf.write_text(conf.read_text().replace("orders.properties", "orders.properties, copy.properties"))
    with pytest.raises(ConfigurationError, match="two datasources are called orders"):
        RecoveryManager(conf)


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
        assert [datasource.statistics().min_size for datasource in manager._configured.all] == [0]


def test_datasources_may_be_added_and_removed_by_many_threads_while_it_scans() -> None:
    world = world_after(logged, "decided")
    manager = RecoveryManager(log=world.log, datasources=[world.a, world.b, world.ledger], backoff=0, period=0.001)
    databases = [ModelDatabase(f"further-{number}", world.calls) for number in range(8)]

    def change(database: ModelDatabase) -> None:
        for _ in range(50):
            manager.add_datasource(database)
            manager.add_datasource(database)  # it takes its own place
            manager.remove_datasource(database.name)
        manager.add_datasource(database)

    threads = [threading.Thread(target=change, args=[database]) for database in databases]
    manager.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manager.stop()
    assert manager.scan().errors == {}
    assert manager.last_scan.overview is not None
    names = [each.name for each in manager.last_scan.overview.datasources]
    assert sorted(names) == sorted([*("a", "b", "ledger"), *(database.name for database in databases)])
    assert world.is_clean()
