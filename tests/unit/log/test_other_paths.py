"""One log that is reached by another path: a second name of its file is refused, a second view of its folder is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import ROOT
from txpool.errors import LogError
from txpool.log import IncarnationState, open_log
from txpool.log.sqlite.store import SqliteLog
from txpool.xid import make_gtrid

if TYPE_CHECKING:
    from tests.conftest import Require

NODE = "etl-1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "txlog"
    log = SqliteLog(folder, node=NODE, create=True)
    log.record(make_gtrid(NODE, log.incarnation, 1), [])
    log.close()
    return folder


def linked(folder: Path, to: Path) -> Path:
    """As `cp -al` copies a folder."""
    shutil.copytree(folder, to, copy_function=os.link)
    to.chmod(0o700)
    return to


def test_17_a_copy_of_hard_links_is_refused_and_so_is_the_original(folder: Path, tmp_path: Path) -> None:
    copy = linked(folder, tmp_path / "copy")
    for path in (copy, folder):
        with pytest.raises(LogError, match=r"has 2 names \(hard links\).*-samefile.*Once no process uses"):
            SqliteLog(path, node=NODE)
        with pytest.raises(LogError, match="has 2 names"):
            open_log(f"sqlite:///{path}", node=NODE, create=True)
    shutil.rmtree(copy)
    log = SqliteLog(folder, node=NODE)
    assert len(log.decisions()) == 1
    log.close()


def test_17_a_hard_link_to_a_log_in_use_is_refused(folder: Path, tmp_path: Path) -> None:
    log = SqliteLog(folder, node=NODE)
    name = log.incarnation
    copy = linked(folder, tmp_path / "copy")
    with pytest.raises(LogError, match="has 2 names"):
        SqliteLog(copy, node=NODE)
    log.record(make_gtrid(NODE, name, 2), [])  # it is in use by its own path alone
    shutil.rmtree(copy)
    assert len(log.decisions()) == 2
    log.close()


def test_17_a_draft_that_a_killed_process_left_is_no_other_path(folder: Path) -> None:
    """The process that creates a log links its draft to the log's name, and then removes the draft."""
    os.link(folder / "log.db", folder / "log.0123456789abcdef.new")
    log = SqliteLog(folder, node=NODE)
    assert len(log.decisions()) == 1
    log.close()


def test_17_a_log_that_is_moved_while_in_use_is_itself_there(folder: Path, tmp_path: Path) -> None:
    log = SqliteLog(folder, node=NODE)
    name = log.incarnation
    moved = folder.rename(tmp_path / "moved")
    other = SqliteLog(moved, node=NODE)
    assert other.incarnations()[name] is IncarnationState.ALIVE
    second = make_gtrid(NODE, name, 2)
    log.record(second, [])
    assert second in other.decisions()
    other.close()
    moved.rename(folder)
    log.close()


_ASKS = """
import sys
from txpool.errors import LogError
from txpool.log.sqlite.store import SqliteLog
try:
    log = SqliteLog(sys.argv[1], node="etl-1")
except LogError as error:
    print("refused:", error)
else:
    print(*sorted(f"{name} {state.value}" for name, state in log.incarnations().items()), len(log.decisions()))
    log.close()
"""


@pytest.fixture
def seen(require: Require) -> Callable[..., str]:
    """`seen(path, *commands)`: what a process finds of a log after mounts that only it sees."""
    able = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0
    require(able, "the right to mount: run as root")

    def seen(path: Path, *commands: str) -> str:
        python = f"exec {sys.executable} -c '{_ASKS.replace(chr(39), chr(34))}' {path}"
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", "; ".join([*commands, python])],
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return seen


def test_17_a_bind_mount_is_the_same_log_and_shows_who_lives(
    folder: Path, tmp_path: Path, seen: Callable[..., str]
) -> None:
    """As a container's volume. The locks of its files are those of the files, whatever path leads there."""
    there = tmp_path / "volume"
    there.mkdir()
    mount = f"mount --bind {folder} {there}"
    log = SqliteLog(folder, node=NODE)
    name = log.incarnation
    assert f"{name} alive" in seen(there, mount)
    log.record(make_gtrid(NODE, name, 2), [])
    assert seen(there, mount).endswith(" 2")
    log.close()
    assert f"{name} alive" not in seen(there, mount)


@pytest.mark.parametrize("part", ["log.db", "log.db-wal", "incarnations"])
def test_17_a_part_that_is_mounted_alone_is_refused(
    part: str, folder: Path, tmp_path: Path, seen: Callable[..., str]
) -> None:
    """The database in a container, by `-v txlog/log.db:…`: the write-ahead log and the locks would be other ones."""
    there = tmp_path / "part"
    mounts = [f"mkdir -m 700 {there}", f"mount --bind {folder} {there}"]
    log = SqliteLog(folder, node=NODE)
    log.record(make_gtrid(NODE, log.incarnation, 2), [])  # now it has a write-ahead log
    if part == "log.db":
        mounts = [f"mkdir -m 700 {there}", f"touch {there}/{part}"]
    found = seen(there, *mounts, f"mount --bind {folder}/{part} {there}/{part}")
    assert found.startswith(f"refused: {there}/{part} is mounted there by itself"), found
    log.record(make_gtrid(NODE, log.incarnation, 3), [])
    log.close()


def test_17_a_layer_over_a_log_is_a_copy(folder: Path, tmp_path: Path, seen: Callable[..., str]) -> None:
    """Each container of an image that has a log in it would write a log of its own."""
    for number in (1, 2):
        layer = tmp_path / f"layer{number}"
        commands = [
            f"mkdir -p {layer}",
            f"mount -t tmpfs none {layer}",
            f"mkdir {layer}/upper {layer}/work {layer}/view",
            f"mount -t overlay -o lowerdir={folder},upperdir={layer}/upper,workdir={layer}/work none {layer}/view",
        ]
        found = seen(layer / "view", *commands)
        assert found.startswith("refused:"), found
        assert "is a copy or was moved" in found
