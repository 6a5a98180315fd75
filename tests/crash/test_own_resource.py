"""The resource of docs/how-to/your-own-resource.md is killed, or loses power, after each operation; each may fail.

What it does to its folder is written down, and the folder is made as a crash may leave it: see tests/crash/disk.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.disk import calls
from tests.crash.disk.image import LOSSES, LOST, Disk, Loss
from tests.crash.disk.recording import KINDS, Fault, Recording, Sync, SyncDirectory, Write
from tests.crash.evidence import Count, Evidence
from tests.crash.mutating import Edit, applied
from tests.support.outbox import Outbox

if TYPE_CHECKING:
    from tests.conftest import Require

SOME = tuple(Loss("some is lost, some torn", seed=str(seed)) for seed in range(8))


@dataclass
class Branch:
    """A message, and the positions among the operations at which its steps were answered."""

    xid: str
    commits: bool
    ends: bool = True
    prepared: int = sys.maxsize
    ended: int = sys.maxsize

    @property
    def content(self) -> bytes:
        return f"message of {self.xid}, ".encode() * 100


@dataclass
class Life:
    """A process prepares three messages; it sends one, rolls one back, and leaves one."""

    recording: Recording
    identity: str = ""
    branches: tuple[Branch, ...] = field(
        default_factory=lambda: (Branch("a", True), Branch("b", False), Branch("c", True, ends=False))
    )

    @property
    def length(self) -> int:
        return len(self.recording.operations)

    def live(self) -> Life:
        with calls.recording(self.recording):
            outbox = Outbox("outbox", self.recording.root)
            self.identity = insisted(outbox.identity)
            insisted(outbox.generation)
            for branch in self.branches:
                self.prepare(outbox, branch)
            for branch in self.branches:
                if branch.ends and branch.ended > self.length:
                    insisted(outbox.commit if branch.commits else outbox.rollback, branch.xid)
                    branch.ended = self.length
        return self

    def prepare(self, outbox: Any, branch: Branch) -> None:
        work = outbox.begin()
        work.write(branch.content)
        try:
            work.prepare(branch.xid)
        except OSError:  # a vote to roll back; it may be prepared nevertheless
            branch.commits = False
            insisted(outbox.rollback, branch.xid)
            branch.ended = self.length
        else:
            branch.prepared = self.length

    def after(self, position: int, loss: Loss) -> Any:
        """The outbox that a crash behind so many operations leaves."""
        disk, contents = Disk(), self._contents
        for operation in self.recording.operations[:position]:
            if isinstance(operation, Sync):  # each file is written once, before its sync
                disk.apply(Write(operation.file, 0, contents[operation.file]))
            disk.apply(operation)
        folder = self.recording.root.parent / "image"
        disk.after(loss).write(folder, self.recording.attic)
        return Outbox("outbox", folder)

    @cached_property
    def _contents(self) -> dict[int, bytes]:
        """What was written to each file: kept, since the attic has what the last crash has left of it."""
        return {int(each.name): each.read_bytes() for each in self.recording.attic.iterdir()}


def insisted(action: Callable[..., Any], *arguments: Any) -> Any:
    """What it answers in the end: an operation fails once."""
    try:
        return action(*arguments)
    except OSError:
        return action(*arguments)


def problems(life: Life, position: int, loss: Loss) -> Iterator[str]:
    """What is not as it was promised after a crash, and after what recovery does then."""
    outbox = life.after(position, loss)
    said = f"after {position} of {life.length} operations, {loss}:"
    was_prepared = [each for each in life.branches if each.prepared <= position]
    identity = outbox.identity()
    if was_prepared and identity != life.identity:
        yield f"{said} another identity"
    for branch in life.branches:
        listed, sent = outbox.hidden / branch.xid, outbox.path / branch.xid
        there = [path for path in (listed, sent) if path.exists()]
        if any(path.read_bytes() != branch.content for path in there):
            yield f"{said} {branch.xid} is not whole"
        if len(there) == 2:
            yield f"{said} {branch.xid} is prepared, and was sent"
        if sent.exists() and not (branch.commits and branch in was_prepared):
            yield f"{said} {branch.xid} was sent, which nobody decided"
        if branch.ended <= position and (listed.exists() or sent.exists() is not branch.commits):
            yield f"{said} {branch.xid} has not ended as it was told"
        if branch in was_prepared and branch.commits and not there:
            yield f"{said} {branch.xid} is lost"
        commit = branch.commits and branch in was_prepared
        (outbox.commit if commit else outbox.rollback)(branch.xid)
        if listed.exists() or sent.exists() is not commit:
            yield f"{said} recovery does not end {branch.xid}"


@pytest.fixture
def begin(require: Require, tmp_path: Path) -> Iterator[Callable[..., Life]]:
    """Lives in folders of their own, in memory where there is such a folder."""
    require(sys.platform == "linux", "Linux, where an open file tells its name")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:

        def begin(fault: Fault | None = None) -> Life:
            place = Path(tempfile.mkdtemp(dir=folder))
            (place / "disk").mkdir()
            (place / "attic").mkdir()
            return Life(Recording(place / "disk", place / "attic", fault))

        yield begin


ALL = (*LOSSES, *SOME)


def after_any_crash(life: Life, losses: tuple[Loss, ...] = ALL) -> list[str]:
    positions = range(life.recording.failed_at or 0, life.length + 1)
    return [each for position in positions for loss in losses for each in problems(life, position, loss)]


def test_after_any_crash_a_message_is_whole_and_ends_as_decided(begin: Callable[..., Life], evidence: Evidence) -> None:
    life = begin().live()
    assert all(each.prepared < sys.maxsize for each in life.branches)
    assert after_any_crash(life) == []
    evidence.add(Count.IMAGES, (life.length + 1) * len(ALL))


@pytest.mark.parametrize("kind", ["ENOSPC", "EIO on fsync", "EIO on a directory's fsync", "EIO on open or unlink"])
def test_whichever_operation_fails_what_is_told_is_true(
    kind: str, begin: Callable[..., Life], evidence: Evidence
) -> None:
    counts = begin().live().recording.counts
    for nth in range(1, sum(counts[operation] for operation in KINDS[kind]) + 1):
        life = begin(Fault(kind, nth)).live()
        assert life.recording.failed_at is not None
        assert after_any_crash(life, LOSSES) == [], str(life.recording.fault)
        evidence.add(Count.IO_FAULTS, 1)


@pytest.mark.parametrize("commits", [True, False])
def test_23_who_meets_an_end_that_was_never_synced_makes_it_durable(commits: bool, begin: Callable[..., Life]) -> None:
    """A process was killed behind its step. Another is told that the branch is gone, and then the power fails."""
    life = begin()
    with calls.recording(life.recording):
        killed, other = (Outbox("outbox", life.recording.root) for _ in range(2))
        life.identity = killed.identity()
        life.prepare(killed, life.branches[0])
        verb = "commit" if commits else "rollback"
        begun = life.length
        assert getattr(killed, verb)("a") is True
        kept = [each for each in life.recording.operations[begun:] if not isinstance(each, SyncDirectory)]
        life.recording.operations[begun:] = kept
        assert (life.after(life.length, LOST).hidden / "a").exists(), "the kill was to come before the sync"
        assert getattr(other, verb)("a") is False
    outbox = life.after(life.length, LOST)
    assert ((outbox.hidden / "a").exists(), (outbox.path / "a").exists()) == (False, commits)


_DURABLE = "txpool.process.durable:"


@pytest.mark.parametrize(
    "edit",
    [
        Edit(_DURABLE + "create_file", "sync(draft)", "pass"),
        Edit(_DURABLE + "create_file", "sync(file.parent)", "pass"),
        Edit(_DURABLE + "identity_in", "sync(file.parent.parent)", "pass"),
    ],
    ids=str,
)
def test_a_sync_that_a_helper_leaves_out_is_found(edit: Edit, begin: Callable[..., Life]) -> None:
    with applied([edit]):
        assert after_any_crash(begin().live())


def test_a_sync_that_an_end_leaves_out_is_found(begin: Callable[..., Life], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Outbox.end.__globals__, "sync", lambda *_: None)
    assert after_any_crash(begin().live())
