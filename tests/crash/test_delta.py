"""Delta tables: a power loss, or a kill, before each operation; processes that die at each point.

What was synced is known folder by folder: see tests/crash/disk/folders.py. deltalake works in Rust, and is stopped
before and after what it does. Each process of its own is spawned: deltalake does not outlive a fork.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import txpool
from recovery import RecoveryManager
from tests.crash import eventually as places
from tests.crash.disk.folders import SyncedTree
from tests.crash.disk.image import KILLED, LOSSES, LOST, Loss
from tests.crash.eventually import Eventually
from tests.crash.evidence import Count, Evidence
from tests.crash.mutating import Edit, applied
from tests.integration.resources.delta.conftest import SCHEMA, committed, transactions
from tests.support.repository import ROOT
from tests.support.sampling import FULL
from txpool.config.settings import RecoverySettings
from txpool.resources.base import BranchOutcome
from txpool.resources.delta.branch import DeltaResource
from txpool.resources.delta.work import DeltaWork
from txpool.resources.files import tree
from txpool.resources.files.branch import StagedInPlace
from txpool.resources.files.place import Place
from txpool.resources.files.work import sweep
from txpool.setup.stores import initialise

if TYPE_CHECKING:
    from tests.conftest import Require

GTRID = "txp1:etl:abcdefghijkl:1"
XID = f"{GTRID}:0:tables:L"
ROWS = pa.table({"n": [1, 2, 3], "part": ["a/b", None, "c d"]}, schema=SCHEMA)
NAMES = ("plain", "in/parts")
WHOLE = {name: [1, 2, 3] for name in NAMES}


@pytest.fixture
def memory(require: Require) -> Iterator[Path]:
    """A folder in memory: no number of an inode is given twice there."""
    require(sys.platform == "linux" and os.access("/dev/shm", os.W_OK), "Linux with /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class Life:
    """One branch, which appends to two tables; `told` is what its caller knows."""

    def __init__(self, root: Path, *, commits: bool) -> None:
        self.root = root
        self.commits = commits
        self.told = "begun"
        for name in NAMES:
            configuration = {"delta.checkpointInterval": "1"}
            parts = ["part"] if "parts" in name else None
            DeltaTable.create(str(root / name), SCHEMA, partition_by=parts, configuration=configuration)
        self.resource = DeltaResource(Place("tables", str(root)), "")
        self.identity = self.resource.identity()
        self.resource.generation()

    def live(self) -> None:
        work = DeltaWork(self.resource.place, GTRID)
        for name in NAMES:
            work.state(name)
            work.append(name, ROWS.to_batches(), SCHEMA)
        work.prepare(XID)
        self.told = "prepared"
        ended = (self.resource.publish if self.commits else self.resource.withdraw)(XID)
        assert ended is (BranchOutcome.COMMITTED if self.commits else BranchOutcome.ROLLED_BACK)
        self.told = "ended"


def shown(root: Path) -> dict[str, list[int]]:
    """The rows of each table: what its log does not name is in none."""
    found = {name: committed(root / name) for name in NAMES}
    for name in NAMES:
        assert len(transactions(root / name)) == len(set(transactions(root / name)))
        assert sorted(DeltaTable(str(root / name)).to_pyarrow_table()["n"].to_pylist()) == found[name]
    return found


def problems(life: Life, image: Path, told: str, where: str) -> Iterator[str]:
    """What is not as it was promised, and what recovery does not put right."""
    after = DeltaResource(Place("tables", str(image)), "")
    if after.identity() != life.identity:
        yield f"{where}: another identity"
    nothing: dict[str, list[int]] = {name: [] for name in NAMES}
    expected = WHOLE if life.commits else nothing
    listed = XID in os.listdir(image / ".txpool" / "prepared")
    if told == "prepared" and not listed and shown(image) != expected:
        yield f"{where}: its manifest is lost before its end: {shown(image)}"
    if told == "ended" and (listed or shown(image) != expected):
        yield f"{where}: it has not ended as it was told: {shown(image)}"
    decided = life.commits and told != "begun"
    for _ in range(2):  # the second does nothing
        ended = (after.publish if decided else after.withdraw)(XID)
        if ended is BranchOutcome.LOST:
            yield f"{where}: rows are lost"
    for each in StagedInPlace(after.place).tables():
        sweep(after.place, each.name)
    hints = [image / name / "_delta_log" / "_last_checkpoint" for name in NAMES]
    if any(each.exists() and json.loads(each.read_text())["version"] != 1 for each in hints):
        yield f"{where}: a hint at another checkpoint"
    if shown(image) != (WHOLE if decided else nothing):
        yield f"{where}: after recovery there is {shown(image)}"
    if os.listdir(image / ".txpool" / "staged") or os.listdir(image / ".txpool" / "prepared"):
        yield f"{where}: something is left"


#: In a full run every loss.
CHOSEN = LOSSES if FULL else (KILLED, LOST)


def after_any_crash(memory: Path, *, commits: bool, losses: tuple[Loss, ...] = CHOSEN) -> tuple[list[str], int]:
    """All that is wrong after a crash before any operation; how many there were."""
    folder = Path(tempfile.mkdtemp(dir=memory))
    (folder / "tables").mkdir()
    life = Life(folder / "tables", commits=commits)
    images: list[tuple[Path, str, str]] = []

    def crash(operation: str) -> None:
        for loss in losses:
            image = folder / f"image{len(images)}"
            disk.write(image, loss)
            images.append((image, life.told, f"before operation {len(images) // len(losses)} ({operation}), {loss}"))

    disk = SyncedTree(life.root, crash)
    with disk.watching((tree, "_rename")):
        life.live()
    crash("the end")
    found = [problem for image, told, where in images for problem in problems(life, image, told, where)]
    shutil.rmtree(folder)
    return found, len(images)


@pytest.mark.costly
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_after_any_crash_it_is_whole_and_ends_as_decided(commits: bool, memory: Path, evidence: Evidence) -> None:
    found, images = after_any_crash(memory, commits=commits)
    assert found == []
    assert images > 50, images
    evidence.add(Count.IMAGES, images)


@pytest.mark.costly
@pytest.mark.parametrize(
    "edit",
    [
        Edit("txpool.resources.delta.work:DeltaWork.sync", "sync_tree(folder, source)", "pass"),
        Edit("txpool.resources.delta.table:commit", "sync_file(_ENTRY, staging)", "pass"),
        Edit("txpool.resources.delta.table:sync_log", "os.fsync(log)", "pass"),
        Edit("txpool.resources.delta.branch:DeltaResource._link", "os.fsync(target)", "pass"),
        Edit("txpool.resources.delta.checkpoint:checkpoint", "sync_file(name, copy, give=True)", "pass"),
    ],
    ids=str,
)
def test_a_sync_that_is_left_out_is_found(edit: Edit, memory: Path) -> None:
    with applied([edit]):
        try:
            found, _ = after_any_crash(memory, commits=True, losses=(LOST, Loss("entries are kept", False, True)))
        except Exception as error:  # a table that cannot be read
            found = [str(error)]
    assert found


# -- processes that are killed --------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, eventually: Eventually) -> Iterator[Path]:
    (tmp_path / "tables").mkdir()
    for name in NAMES:
        DeltaTable.create(str(tmp_path / "tables" / name), SCHEMA)
    (tmp_path / "tables.properties").write_text("name = tables\ndriver = delta\nfolder = tables\n")
    (tmp_path / "ledger.properties").write_text(
        "name = ledger\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n"
    )
    common = "node.name = etl\nlog.url = sqlite:///txlog\n"
    (tmp_path / "txpool.properties").write_text(f"{common}log.create = true\n")
    datasources = "datasources = tables.properties, ledger.properties\nrecovery.backoff = 0\n"
    (tmp_path / "recovery.properties").write_text(f"{common}{datasources}")
    txpool.configure(tmp_path / "txpool.properties")
    initialise(RecoverySettings.load(tmp_path / "recovery.properties"))
    with closing(txpool.connect(tmp_path / "ledger.properties")) as connection:
        connection.execute("create table loads (number integer)")
        connection.commit()
    txpool.configure()
    eventually.in_the(
        places.of_files(tmp_path / "recovery.properties", marked=["ledger.db"], more=lambda: _left_in(tmp_path))
    )
    yield tmp_path
    txpool.configure()


def _left_in(site: Path) -> Iterator[tuple[str, str]]:
    for kind in ("prepared", "staged"):
        yield from ((kind, path.name) for path in site.glob(f"tables/.txpool/{kind}/*"))


JOB = """
import sys
import pyarrow as pa
import txpool
from txpool.lake import write_table

txpool.configure("txpool.properties")
for number in map(int, sys.argv[1:]):
    with txpool.transaction():
        for name in ("plain", "in/parts"):
            write_table(pa.table({"n": [number]}), "tables.properties", name)
        with txpool.connect("ledger.properties") as connection:
            connection.execute("insert into loads values (?)", (number,))
"""


SCAN = ("-m", "recovery", "scan", "--conf", "recovery.properties")


def run(site: Path, failpoints: str, *command: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TXPOOL_FAILPOINTS": failpoints}
    return subprocess.run([sys.executable, *command], cwd=site, env=environment, check=False, timeout=300).returncode


POINTS = {
    "files.staged": False,
    "files.synced": False,
    "coordinator.prepared": False,
    "marked.committed": True,
    "delta.linked": True,
    "delta.appended": True,
    "delta.published": True,
    "coordinator.one-committed": True,
    "coordinator.committed": True,
}


def require_whole(site: Path, number: int, point: str, *, commits: bool) -> None:
    with closing(sqlite3.connect(site / "ledger.db")) as file:
        rows = file.execute("select count(*) from loads where number = ?", (number,)).fetchone()[0]
    found = shown(site / "tables")
    assert [found[name].count(number) for name in NAMES] == [rows, rows] == [commits, commits], point
    assert [*_left_in(site)] == [], point


@pytest.mark.costly
def test_a_process_that_is_killed_at_each_point(site: Path, evidence: Evidence) -> None:
    for number, (point, commits) in enumerate(POINTS.items(), 1):
        assert run(site, f"{point}=kill", "-c", JOB, str(number)) == -signal.SIGKILL, point
        RecoveryManager(site / "recovery.properties").scan()
        require_whole(site, number, point, commits=commits)
    evidence.add(Count.KILLS, len(POINTS))
    evidence.hit(POINTS)


@pytest.mark.costly
def test_a_recovery_that_is_killed_at_each_point(site: Path, evidence: Evidence) -> None:
    """Again and again: each goes on where the one before it was killed."""
    assert run(site, "marked.committed=kill", "-c", JOB, "1") == -signal.SIGKILL
    for point in ("delta.linked=kill", "delta.linked=kill@2", "delta.appended=kill", "delta.published=kill"):
        assert run(site, point, *SCAN) == -signal.SIGKILL, point
    assert run(site, "", *SCAN) == 0
    require_whole(site, 1, "recovery", commits=True)
    evidence.add(Count.KILLS, 5)
