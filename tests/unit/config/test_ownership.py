"""Whether others could change a file, or swap it for another: owners, modes, the folders and symlinks on its path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from txpool.config.ownership import require_owned, user, why_not_trusted
from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from tests.conftest import Require

OTHER = 65534  # nobody, who owns nothing


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir(mode=0o755)
    path = tmp_path / "folder" / "file"
    path.write_text("")
    path.chmod(0o644)
    return path


def test_ones_own_file_is_trusted_wherever_its_path_leads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    file.with_name("link").symlink_to("../folder/file")
    file.with_name("absolute").symlink_to(file)
    for path in (file, str(file), "file", "../folder/./file", "link", "absolute", file.parent, Path("/"), Path("/tmp")):
        assert why_not_trusted(path) is None, path
    require_owned(file, "it names code to run")


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert (
        why_not_trusted(file) == f"others can write to {file}, which belongs to {user(os.geteuid())}: chmod go-w {file}"
    )
    with pytest.raises(ConfigurationError, match=f"{file} is not used, since it names code to run and is not safe"):
        require_owned(file, "it names code to run")


def test_a_folder_that_others_can_write_unless_it_is_sticky(file: Path) -> None:
    file.parent.chmod(0o777)
    for path in (file, file.parent):
        reason = why_not_trusted(path)
        assert reason is not None
        assert reason.startswith(f"others can write to the folder {file.parent}, which belongs to {user(os.geteuid())}")
    file.parent.chmod(0o1777)
    assert why_not_trusted(file) is None


def test_what_cannot_be_looked_at(file: Path) -> None:
    loop = file.with_name("loop")
    loop.symlink_to(loop)
    assert "too many symlinks" in (why_not_trusted(loop) or "")
    for path in (file.with_name("none"), file / "below"):
        assert "cannot be looked at" in (why_not_trusted(path) or "")


def test_another_user_s(file: Path, require: Require) -> None:
    require(os.geteuid() == 0, "root, who can give files away")
    wanted = f"belongs to {user(OTHER)}, who can change it: it is to belong to root"
    os.chown(file, OTHER, -1)
    assert why_not_trusted(file) == f"{file} {wanted}"
    assert why_not_trusted(file, owner=OTHER) is None
    os.chown(file, 0, -1)
    assert why_not_trusted(file, owner=OTHER) is None
    os.chown(file.parent, OTHER, -1)
    for mode in (0o755, 0o1777):  # a sticky folder keeps others from what is in it, but not its owner
        file.parent.chmod(mode)
        assert why_not_trusted(file) == f"{file.parent} {wanted}"


def test_another_user_s_symlink(file: Path, require: Require) -> None:
    require(os.geteuid() == 0, "root, who can give files away")
    shared = file.parent.parent / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "link"
    link.symlink_to(file.parent)
    assert why_not_trusted(link / "file") is None
    os.chown(link, OTHER, -1, follow_symlinks=False)
    assert f"{link} belongs to {user(OTHER)}" in (why_not_trusted(link / "file") or "")


def test_an_opened_file_is_looked_at_itself(file: Path, require: Require) -> None:
    require(os.geteuid() == 0, "root, who can give files away")
    other = file.with_name("other")
    other.write_text("")
    os.chown(other, OTHER, -1)
    with other.open() as opened:
        assert why_not_trusted(file) is None
        assert "belongs to" in (why_not_trusted(file, descriptor=opened.fileno()) or "")


def test_a_group_of_one_user_may_write_a_folder(file: Path, require: Require) -> None:
    require(os.geteuid() == 0, "root, who can give files away")
    file.parent.chmod(0o775)
    assert why_not_trusted(file) is None  # root's own group, of which nobody else is a member
    os.chown(file.parent, 0, OTHER)
    assert "others can write to the folder" in (why_not_trusted(file) or "")
