"""Folders of files: a power loss, or a kill, before each operation; each may fail; interrupts; processes that die.

What was synced is known folder by folder: see tests/crash/disk/folders.py.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from recovery import RecoveryManager
from tests.crash import eventually as places
from tests.crash.disk.folders import SyncedTree
from tests.crash.disk.image import KILLED, LOSSES, LOST, Loss
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED, Count, Evidence
from tests.crash.mutating import Edit, applied
from tests.support.forking import is_killed
from tests.support.interrupts import at_each_check, codes_of
from tests.support.sampling import FULL
from txpool import failpoints
from txpool.config.settings import RecoverySettings
from txpool.resources.base import BranchOutcome
from txpool.resources.files import branch, place, tree, work
from txpool.resources.files.place import Place
from txpool.resources.files.work import FolderWork
from txpool.setup.stores import initialise

if TYPE_CHECKING:
    from tests.conftest import Require

GTRID = "txp1:etl:abcdefghijkl:1"
XID = f"{GTRID}:0:exports:L"
FORMER = {"a/data": "former", "a/_SUCCESS": "former"}
NEW = {"a/data": "new" * 5000, "a/in/data": "new", "b/c/data": "new"}


@pytest.fixture
def memory(require: Require, tmp_path: Path) -> Iterator[Path]:
    """A folder in memory: no number of an inode is given twice there."""
    require(sys.platform == "linux" and os.access("/dev/shm", os.W_OK), "Linux with /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class Life:
    """One branch, which overwrites one folder and makes another; `told` is what its caller knows."""

    def __init__(self, root: Path, *, commits: bool) -> None:
        self.root = root
        self.commits = commits
        self.told = "begun"
        for file, text in FORMER.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
        self.place = Place("exports", str(root))
        self.identity = self.place.identity()
        self.place.generation()

    def live(self) -> None:
        files = FolderWork(self.place, GTRID)
        for name in ("a", "b/c"):
            staged = files.folder(name, overwrite=True)
            for file, text in NEW.items():
                if file.startswith(f"{name}/"):
                    with staged.open(file.removeprefix(f"{name}/")) as part:
                        part.write(text)
        files.prepare(XID)
        self.told = "prepared"
        ended = (branch.publish if self.commits else branch.withdraw)(self.place, XID)
        assert ended is (BranchOutcome.COMMITTED if self.commits else BranchOutcome.ROLLED_BACK)
        self.told = "ended"


def published(root: Path) -> dict[str, str]:
    found = {}
    for file in root.rglob("*"):
        if file.is_file() and ".txpool" not in file.parts:
            found[str(file.relative_to(root))] = file.read_text()
    return found


def problems(life: Life, image: Path, told: str, shown: str) -> Iterator[str]:
    """What is not as it was promised, and what recovery does not put right."""
    after = Place("exports", str(image))
    if after.identity() != life.identity:
        yield f"{shown}: another identity"
    new = {**NEW, "a/_SUCCESS": XID, "b/c/_SUCCESS": XID}
    listed = XID in os.listdir(image / ".txpool" / "prepared")
    if told == "prepared" and not listed:
        expected = new if life.commits else FORMER
        if {**published(image)} != expected:
            yield f"{shown}: its manifest is lost before its end: {sorted(published(image))}"
    if told == "ended":
        if listed:
            yield f"{shown}: it has ended, and is prepared again"
        if published(image) != (new if life.commits else FORMER):
            yield f"{shown}: it has not ended as it was told: {sorted(published(image))}"
    decided = life.commits and told != "begun"
    for _ in range(2):  # the second does nothing
        ended = (branch.publish if decided else branch.withdraw)(after, XID)
        if ended is BranchOutcome.LOST:
            yield f"{shown}: a folder is lost"
    for each in branch.StagedInPlace(after).tables():
        branch.sweep(after, each.name)
    if published(image) != (new if decided else FORMER):
        yield f"{shown}: after recovery there is {sorted(published(image))}"
    if os.listdir(image / ".txpool" / "staged") or os.listdir(image / ".txpool" / "prepared"):
        yield f"{shown}: something is left"


#: In a full run every loss.
CHOSEN = LOSSES if FULL else (KILLED, LOST)


def after_any_crash(memory: Path, *, commits: bool, losses: tuple[Loss, ...] = CHOSEN) -> tuple[list[str], int]:
    """All that is wrong after a crash before any operation; how many there were."""
    folder = Path(tempfile.mkdtemp(dir=memory))
    (folder / "exports").mkdir()
    life = Life(folder / "exports", commits=commits)
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
    found = [problem for image, told, shown in images for problem in problems(life, image, told, shown)]
    shutil.rmtree(folder)
    return found, len(images)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_after_any_crash_it_is_whole_and_ends_as_decided(commits: bool, memory: Path, evidence: Evidence) -> None:
    found, images = after_any_crash(memory, commits=commits)
    assert found == []
    assert images > 100, images
    evidence.add(Count.IMAGES, images)


@pytest.mark.parametrize(
    "edit",
    [
        Edit("txpool.resources.files.tree:sync_file", "os.fsync(descriptor)", "pass"),
        Edit("txpool.resources.files.tree:sync_tree", "os.fsync(folder)", "pass"),
        Edit("txpool.resources.files.work:PlaceWork.prepare", "os.fsync(staging)", "pass"),
        Edit("txpool.resources.files.branch:_move", "os.fsync(parent)", "pass"),
        Edit("txpool.resources.files.branch:_succeed", "os.fsync(target)", "pass"),
        Edit("txpool.resources.files.branch:forget", "os.fsync(hidden.prepared)", "pass"),
        Edit("txpool.resources.files.place:Place.draft", "sync_file(_DRAFT, staging)", "pass"),
        Edit("txpool.resources.files.place:Place.add", "os.fsync(hidden.prepared)", "pass"),
    ],
    ids=str,
)
def test_a_sync_that_is_left_out_is_found(edit: Edit, memory: Path) -> None:
    with applied([edit]):
        try:
            found, _ = after_any_crash(memory, commits=True, losses=(LOST,))
        except txpool.Error as error:
            found = [str(error)]
    assert found


# -- interrupts -----------------------------------------------------------------------------------------------------


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


CODES = {code for module in (branch, place, tree, work) for code in codes_of(module)}
#: Of the places at which an interrupt may come, so many are tried.
SOME = 10_000 if FULL else 15


@pytest.fixture
def site(tmp_path: Path, eventually: Eventually) -> Iterator[Path]:
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports.properties").write_text("name = exports\ndriver = files\nfolder = exports\n")
    (tmp_path / "ledger.properties").write_text(
        "name = ledger\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n"
    )
    common = "node.name = etl\nlog.url = sqlite:///txlog\n"
    (tmp_path / "txpool.properties").write_text(f"{common}log.create = true\n")
    datasources = "datasources = exports.properties, ledger.properties\nrecovery.backoff = 0\n"
    (tmp_path / "recovery.properties").write_text(f"{common}{datasources}")
    txpool.configure(tmp_path / "txpool.properties")
    initialise(RecoverySettings.load(tmp_path / "recovery.properties"))
    with closing(txpool.connect(tmp_path / "ledger.properties")) as connection:
        connection.execute("create table loads (number integer)")
        connection.commit()
    eventually.in_the(
        places.of_files(tmp_path / "recovery.properties", marked=["ledger.db"], more=lambda: _left_in(tmp_path))
    )
    yield tmp_path
    failpoints.disarm()
    txpool.configure()


def _left_in(site: Path) -> Iterator[tuple[str, str]]:
    """What is prepared or staged; of a manifest that was not written to its end there is no more than its draft."""
    for kind in ("prepared", "staged"):
        yield from ((kind, path.name) for path in site.glob(f"exports/.txpool/{kind}/*") if path.suffix != ".new")


def job(site: Path, number: int, *, ledger: bool = True) -> None:
    with txpool.transaction():
        for name in (f"n{number}", "latest"):
            with txpool.folder(site / "exports.properties", name, overwrite=True).open("data") as file:
                file.write(str(number))
        if ledger:
            with txpool.connect(site / "ledger.properties") as connection:
                connection.execute("insert into loads values (?)", (number,))


def recovered(site: Path, number: int, shown: str) -> bool:
    """After recovery, whether the job has committed: in all of its places, or in none, and nothing is left."""
    txpool.configure()  # its process has ended, as far as recovery can see
    manager = RecoveryManager(site / "recovery.properties")
    manager.scan()
    with closing(sqlite3.connect(site / "ledger.db")) as file:
        rows = [row for (row,) in file.execute("select number from loads where number = ?", (number,))]
    files = published(site / "exports")
    whole = files.get(f"n{number}/data") == str(number) and f"n{number}/_SUCCESS" in files
    assert (f"n{number}/data" in files) is whole is (rows == [number]) is (files.get("latest/data") == str(number)), (
        shown
    )
    assert [*_left_in(site)] == [], shown
    txpool.configure(site / "txpool.properties")
    return whole


def interrupted(site: Path, number: int, nth: int) -> tuple[bool, BaseException | None]:
    """Run the job with an interrupt at the n-th place: whether that came, and what was told."""
    count = 0

    def strike(frame: FrameType) -> None:
        nonlocal count
        count += 1
        if count == nth:
            raise Interrupt

    try:
        with at_each_check(CODES, strike):
            job(site, number)
    except (Interrupt, txpool.Error) as error:
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return count >= nth, error
    return count >= nth, None


@pytest.mark.costly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a file whose open() was cut off
def test_an_interrupt_at_each_place(site: Path) -> None:
    job(site, 1)
    count = 0

    def counting(frame: FrameType) -> None:
        nonlocal count
        count += 1

    with at_each_check(CODES, counting):
        job(site, 2)
    places = range(1, count + 1)
    chosen = places if len(places) <= SOME else sorted(Random(SEED).sample(places, SOME))
    for number, nth in enumerate(chosen, 3):
        came, told = interrupted(site, number, nth)
        assert txpool.current() is None
        shown = f"seed {SEED}: interrupt at {nth} of {count}, told {told!r}"
        committed = recovered(site, number, shown)
        assert came or told is None, shown
        if told is None:
            assert committed, shown
        elif isinstance(told, txpool.TransactionRolledBack):
            assert not committed, shown
    told = None
    gc.collect()  # files whose open() was cut off, here and in no later test


# -- processes that are killed --------------------------------------------------------------------------------------


def killed(site: Path, number: int, arm: Callable[[], object]) -> bool:
    """Run the job in a forked child; whether it was killed."""

    def dies() -> None:
        txpool.configure(site / "txpool.properties")
        arm()
        job(site, number)

    txpool.configure()
    return is_killed(dies)


POINTS = {
    "files.staged": False,
    "files.synced": False,
    "files.published": True,
    "files.succeeded": True,
    "coordinator.begin": False,
    "coordinator.marked": False,
    "coordinator.preparing": False,
    "coordinator.prepared": False,
    "marked.commit": False,
    "marked.committed": True,
    "coordinator.decided": True,
    "coordinator.committing": True,
    "coordinator.one-committed": True,
    "coordinator.committed": True,
}


@pytest.mark.costly
def test_a_process_that_is_killed_at_each_point(site: Path, evidence: Evidence) -> None:
    for number, (point, commits) in enumerate(POINTS.items(), 1):
        assert killed(site, number, partial(failpoints.arm, point, "kill")), point
        assert recovered(site, number, point) is commits, point
    evidence.add(Count.KILLS, len(POINTS))
    evidence.hit(POINTS)


def kill_at(nth: int) -> None:
    """Kill this process before its n-th operation on files."""
    count = 0

    def operation(name: str) -> None:
        nonlocal count
        count += 1
        if count == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    for where, name in [(tree, "_rename"), *((os, name) for name in ("mkdir", "unlink", "rmdir", "rename", "fsync"))]:
        setattr(where, name, _counted(getattr(where, name), name, operation))


def _counted(call: Callable[..., Any], name: str, operation: Callable[[str], object]) -> Callable[..., Any]:
    def counted(*arguments: Any, **keywords: Any) -> Any:
        operation(name)
        return call(*arguments, **keywords)

    return counted


def test_a_process_that_is_killed_before_any_operation(site: Path, evidence: Evidence) -> None:
    """And recovery, too, before it ends."""
    job(site, 1000)
    places = range(1, 70)
    for number, nth in enumerate(places if FULL else sorted(Random(SEED).sample(places, 6)), 1):
        if not killed(site, number, partial(kill_at, nth)):
            break
        recovery_dies(site, 1 + number % 12)
        recovered(site, number, f"seed {SEED}: killed before operation {nth}")
        evidence.add(Count.KILLS, 1)
    assert number > 3


def recovery_dies(site: Path, nth: int) -> None:
    """A recovery is killed before its n-th operation, if it has so many."""
    txpool.configure()
    pid = os.fork()
    if not pid:
        try:
            kill_at(nth)
            RecoveryManager(site / "recovery.properties").scan()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
