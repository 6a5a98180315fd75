"""Whose a log's folder is: made where nobody can swap it, used by its owner alone, and nothing planted is followed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from txpool.config.ownership import user
from txpool.errors import LogError
from txpool.log import adopt_log, open_log

if TYPE_CHECKING:
    from tests.conftest import Require

OTHER = 65534  # nobody, who owns nothing
NODE = "etl-1"

AsOther = Callable[[str, Path], str]

_OTHER_USER = f"""
import os, sys, urllib.request  # a later pathlib loads the last at need, perhaps from where the other user may not read
from pathlib import Path
from txpool.errors import LogError
from txpool.log import open_log
import txpool.log.sqlite.store
path = Path(sys.argv[1])
os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})
"""


@pytest.fixture
def as_other(require: Require) -> AsOther:
    """`as_other("source", path)`: runs source as a real other user; what it has printed."""
    require(os.geteuid() == 0, "root, who can become another user")

    def run(source: str, path: Path) -> str:
        arguments = [sys.executable, "-c", _OTHER_USER + source, str(path)]
        return subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout

    return run


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder where everybody may make files, as /tmp."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def _opened(path: Path, *, create: bool = False) -> None:
    open_log(f"sqlite:///{path}", node=NODE, create=create).close()


def _all_below(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_uid, path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}


def _refused(path: Path, *words: str, below: Path) -> None:
    """Neither made, opened nor adopted, and nothing changes on the way."""
    before = _all_below(below)
    for attempt in (
        lambda: _opened(path, create=True),
        lambda: _opened(path),
        lambda: adopt_log(f"sqlite:///{path}", node=NODE),
    ):
        with pytest.raises(LogError) as caught:
            attempt()
        for word in (*words, "nothing was done"):
            assert word in str(caught.value)
    assert _all_below(below) == before


def test_another_user_s_symlink_is_not_followed(shared: Path, tmp_path: Path, as_other: AsOther) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    as_other(f"path.symlink_to({str(target)!r})", shared / "txlog")
    _refused(shared / "txlog", f"{shared}/txlog belongs to {user(OTHER)}", below=tmp_path)
    with pytest.raises(LogError, match=f"{shared}/txlog belongs to {user(OTHER)}, who can change it"):
        _opened(shared / "txlog" / "below", create=True)
    assert list(target.iterdir()) == []


def test_another_user_s_folder_is_not_used(shared: Path, as_other: AsOther) -> None:
    as_other("path.mkdir(0o777); path.chmod(0o777)", shared / "txlog")
    _refused(shared / "txlog", f"it belongs to {user(OTHER)}", f"sudo -u {user(OTHER)}", below=shared)
    (shared / "txlog").chmod(0o755)
    with pytest.raises(LogError, match=f"{shared}/txlog belongs to {user(OTHER)}, who can change it"):
        _opened(shared / "txlog" / "below", create=True)


def test_root_leaves_another_user_s_log_to_it(shared: Path, as_other: AsOther) -> None:
    path = shared / "txlog"
    opening = "open_log(f'sqlite:///{path}', node='etl-1', create=True).close(); print('opened')"
    assert as_other(opening, path) == "opened\n"
    _refused(path, f"it belongs to {user(OTHER)}", f"sudo -u {user(OTHER)}", below=shared)
    conf = shared / "recovery.properties"
    conf.write_text(f"node.name = {NODE}\nlog.url = sqlite:///{path}\ndatasources = one.properties\n")
    (shared / "one.properties").write_text("driver = sqlite3\nmode = cmr\nurl = sqlite:///one.db\n")
    before = _all_below(path)
    for command in (["list"], ["scan"], ["init"], ["init", "--adopt"]):
        told = subprocess.run(
            [sys.executable, "-m", "recovery", *command, "--conf", str(conf)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert told.returncode != 0
        assert f"it belongs to {user(OTHER)}" in told.stdout + told.stderr
        assert "Traceback" not in told.stderr
    assert _all_below(path) == before
    assert as_other(opening, path) == "opened\n"


def test_a_log_of_root_is_not_another_user_s(shared: Path, as_other: AsOther) -> None:
    _opened(shared / "txlog", create=True)
    attempt = "try:\n    open_log(f'sqlite:///{path}', node='etl-1', create=True)\nexcept LogError as e:\n    print(e)"
    assert "it belongs to root, and this process is" in as_other(attempt, shared / "txlog")


@pytest.mark.parametrize("below", ["txlog", "a/txlog"])
def test_a_folder_above_that_others_can_write(tmp_path: Path, below: str) -> None:
    (tmp_path / "shared" / "a").mkdir(parents=True)
    path = tmp_path / "shared" / below
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(LogError, match=rf"others can write to the folder {tmp_path}/shared, which belongs to \w+") as e:
        _opened(path, create=True)
    assert f"chmod go-w {tmp_path}/shared" in str(e.value)
    assert not path.exists()
    (tmp_path / "shared").chmod(0o1777)
    _opened(path, create=True)
    (tmp_path / "shared").chmod(0o777)
    _refused(path, f"others can write to the folder {tmp_path}/shared", below=tmp_path)


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "txlog"
    path.mkdir()
    path.chmod(0o755)
    _opened(path, create=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    for mode in (0o777, 0o1777):
        path.chmod(mode)
        _refused(path, f"others can write to the folder {path}", below=path)
    made = tmp_path / "made"
    _opened(made, create=True)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert not [path for path, (_, mode) in _all_below(made).items() if mode & 0o077]


@pytest.mark.parametrize(
    "name", ["log.db", "log.db-wal", "log.db-shm", "log.db-wal.damaged", "reserve", "incarnations"]
)
def test_what_is_planted_in_the_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "txlog"
    _opened(path, create=True)
    (tmp_path / "outside").mkdir(exist_ok=True)
    target = tmp_path / "outside" / name
    if (path / name).exists():
        (path / name).rename(target)
    else:
        target.write_bytes(b"")
    (path / name).symlink_to(target)
    _refused(path, f"{path}/{name} is no plain f", below=tmp_path)


@pytest.mark.parametrize("name", ["log.db", "incarnations"])
def test_what_others_can_change_in_the_folder(tmp_path: Path, name: str, require: Require) -> None:
    path = tmp_path / "txlog"
    _opened(path, create=True)
    if name == "incarnations":
        (path / name).mkdir(exist_ok=True, mode=0o700)
    mode = stat.S_IMODE((path / name).stat().st_mode)
    (path / name).chmod(mode | 0o020)
    _opened(path)  # where nobody else comes to
    path.chmod(0o755)
    _refused(path, f"others can write to {path}/{name}", f"chmod go-w {path}/{name}", below=tmp_path)
    (path / name).chmod(mode)
    require(os.geteuid() == 0, "root, who can give files away")
    os.chown(path / name, OTHER, -1)
    _refused(path, f"{path}/{name} belongs to {user(OTHER)}", below=tmp_path)


def test_a_symlink_of_ones_own_leads_to_the_log(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "txlog")
    with pytest.raises(LogError):
        _opened(tmp_path / "link", create=True)  # it leads nowhere
    _opened(tmp_path / "txlog", create=True)
    _opened(tmp_path / "link")
