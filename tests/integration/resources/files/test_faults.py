"""The file system says no: each error is one sentence, and the outcome is right. The faults are real where they can be.

A small file system in memory is full, read-only, unmounted, or hidden by another mount. A sync that fails is made here.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.integration.resources.files.conftest import Exports, gone
from tests.integration.resources.files.test_recovery import prepared
from tests.support.small_disk import mount, small_disk
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.files import branch
from txpool.resources.files.manager import MANAGER
from txpool.xid import parse

if TYPE_CHECKING:
    from tests.conftest import Require

SIZE = 256 * 1024


@pytest.fixture
def small(exports: Exports, require: Require) -> Iterator[Exports]:
    """The place is a small file system of its own."""
    with small_disk(exports.place, SIZE, require):
        yield exports


def fill(exports: Exports) -> Path:
    """Nothing more can be written."""
    file = exports.place / "full"
    with file.open("ab", buffering=0) as full, suppress(OSError):
        while True:
            full.write(b"x" * 4096)
    return file


def one_sentence(error: BaseException | str) -> str:
    said = str(error)
    assert said
    assert "\n" not in said
    assert "Traceback" not in said
    return said


def why_not(exports: Exports, xid: str, *, commit: bool = True) -> str:
    """Why the branch that is prepared cannot be ended now."""
    settings = DataSourceSettings.load(exports.file)
    place = MANAGER.branch_recovery(settings)
    found = parse(xid)
    assert found is not None
    outcome, reason = place.end(BranchRecord(found, "exports"), commit=commit)
    assert outcome is BranchOutcome.UNKNOWN, outcome
    return one_sentence(reason)


def test_full_before_anything_is_staged(small: Exports) -> None:
    with txpool.transaction():
        small.write("before", "1")
    full = fill(small)
    # A folder takes no room in memory, a file does: whoever writes it is told so.
    with pytest.raises((OSError, txpool.OperationalError)), txpool.transaction():
        small.write("a", "1" * 8192)
    assert small.left() == []
    full.unlink()
    assert small.published() == small.whole(before="1")


def test_full_at_the_prepare(small: Exports) -> None:
    with pytest.raises(txpool.TransactionRolledBack, match="No space left on device") as refused, txpool.transaction():
        small.write("a", "1")
        full = fill(small)
    assert "voted to roll back" in one_sentence(refused.value)
    full.unlink()
    assert small.published() == {}
    assert small.left() == []


def test_full_at_the_commit(small: Exports) -> None:
    """A rename takes no room. A folder above it may, on other file systems than this."""
    with txpool.transaction():
        small.write("a", "former")
    _, _ = prepared(small, "a", "in/b", overwrite=True)
    full = fill(small)
    small.scan()
    full.unlink()
    assert small.published() == small.whole(**{"a": "new", "in/b": "new"})
    assert small.left() == []


@pytest.mark.parametrize("step", ["descended", "move_new", "_succeed", "forget"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_commit_that_the_file_system_refuses_waits(
    number: int, step: str, exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "a")

    with monkeypatch.context() as patch:
        patch.setattr(branch, step, refusing)
        with txpool.transaction() as tx:
            exports.write("in/a", "new")
        assert tx.unanswered == ["exports"], "it is decided, and reported so"
        (xid,) = [each for each in exports.left() if ":" in each]
        said = why_not(exports, xid)
    assert os.strerror(number) in said
    assert str(exports.place) in said
    assert "not published yet, and stays until the file system allows it" in said
    exports.scan()
    assert exports.published() == exports.whole(**{"in/a": "new"})
    assert exports.left() == []


@pytest.mark.parametrize("nth", range(1, 11))
def test_a_sync_that_fails_before_the_decision_rolls_back(
    nth: int, exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is taken for durable of which a sync has failed, even if the next one succeeds."""
    with txpool.transaction():
        exports.write("before", "1")
    fsync, count = os.fsync, 0

    def failing(descriptor: int) -> None:
        nonlocal count
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if "/.txpool/" in path:
            count += 1
            if count == nth:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        # The first one is of the staging folder, in folder() itself; the last one of the manifest's name.
        with pytest.raises((txpool.OperationalError, txpool.TransactionRolledBack)) as told, txpool.transaction():
            exports.write("a", "1")
        assert count >= nth
    assert "Input/output error" in one_sentence(told.value)
    gone()
    exports.scan()
    assert exports.published() == exports.whole(before="1")
    assert exports.left() == []


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_mount_that_comes_after_the_prepare(overwrite: bool, small: Exports) -> None:
    _, xid = prepared(small, "in/a", overwrite=overwrite)
    (small.place / "in").mkdir()
    mount("-t", "tmpfs", "none", small.place / "in")
    try:
        assert "has become another file system" in why_not(small, xid)
        small.scan()
        assert small.published() == {}
    finally:
        subprocess.run(["umount", small.place / "in"], check=True)
    small.scan()
    assert small.published() == small.whole(**{"in/a": "new"})
    assert small.left() == []


def test_a_mount_below_is_refused_before_the_prepare(small: Exports) -> None:
    (small.place / "in").mkdir()
    mount("-t", "tmpfs", "none", small.place / "in")
    try:
        with txpool.transaction(), pytest.raises(txpool.ProgrammingError, match="is another file system") as refused:
            txpool.folder(small.file, "in/a")
        one_sentence(refused.value)
    finally:
        subprocess.run(["umount", small.place / "in"], check=True)


@pytest.mark.parametrize("hidden", [True, False])
def test_a_read_only_mount(hidden: bool, small: Exports) -> None:
    if hidden:
        with txpool.transaction():
            small.write("before", "1")
    mount("-o", "remount,ro", small.place)
    with txpool.transaction() as tx, pytest.raises(txpool.Error, match=r"(?i)read-only file system") as told:
        txpool.folder(small.file, "a")
    assert str(small.place) in one_sentence(told.value)
    assert tx.status is txpool.Status.COMMITTED, "there was nothing in it"
    (found,) = MANAGER.findings(DataSourceSettings.load(small.file), stale_after=0, timeout=None)
    assert "Read-only file system" in one_sentence(found.found)
    mount("-o", "remount,rw", small.place)
    with txpool.transaction():
        small.write("a", "1")
    assert small.published() == small.whole(a="1", **({"before": "1"} if hidden else {}))


@pytest.mark.parametrize("commit", [True, False])
def test_read_only_since_the_prepare(commit: bool, small: Exports) -> None:
    _, xid = prepared(small, "a")
    mount("-o", "remount,ro", small.place)
    assert "Read-only file system" in why_not(small, xid, commit=commit)
    small.scan()
    assert xid in small.left()
    mount("-o", "remount,rw", small.place)
    small.scan()
    assert small.published() == small.whole(a="new")


def unmount(exports: Exports) -> Callable[[], object]:
    """The place is not mounted: its mount point is there, and empty."""
    aside = exports.site / "aside"
    aside.mkdir()
    mount("--bind", exports.place, aside)
    subprocess.run(["umount", exports.place], check=True)

    def again() -> None:
        mount("--bind", aside, exports.place)
        subprocess.run(["umount", aside], check=True)

    return again


def test_unmounted_since_the_prepare(small: Exports) -> None:
    """An empty mount point is another place, in which nothing has ever been prepared."""
    _, xid = prepared(small, "a")
    again = unmount(small)
    manager = small.scan()
    del manager
    again()
    assert xid in small.left()
    small.scan()
    assert small.published() == small.whole(a="new")


def test_the_place_is_removed_beneath_a_transaction(exports: Exports) -> None:
    with pytest.raises(txpool.TransactionRolledBack) as told, txpool.transaction():
        exports.write("a", "1")
        shutil.rmtree(exports.place)
    assert "is not there. Is it mounted?" in one_sentence(told.value)
    assert not exports.place.exists()


def test_what_is_staged_is_removed_beneath_a_transaction(exports: Exports) -> None:
    with pytest.raises(txpool.TransactionRolledBack) as told, txpool.transaction():
        exports.write("a", "1")
        shutil.rmtree(exports.hidden)
    one_sentence(told.value)
    assert exports.published() == {}


def test_the_folder_above_is_removed_after_the_prepare(exports: Exports) -> None:
    (exports.place / "in").mkdir()
    prepared(exports, "in/a")
    (exports.place / "in").rmdir()
    exports.scan()
    assert exports.published() == exports.whole(**{"in/a": "new"})


def test_all_is_removed_after_the_prepare(exports: Exports) -> None:
    _, xid = prepared(exports, "a")
    shutil.rmtree(exports.place)
    assert "is not there. Is it mounted?" in why_not(exports, xid)
    assert "is not there. Is it mounted?" in why_not(exports, xid, commit=False)
