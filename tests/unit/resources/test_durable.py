"""What a resource in a folder is made of: files that are whole or not there, an identity, a generation."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from txpool.resource import create_file, generation_in, identity_in


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    create_file(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", b"second")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"a": b"first"}


@pytest.mark.parametrize("failing", ["fsync", "link"])
def test_a_file_that_cannot_be_made_whole_is_not_there(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="no space left"):
        create_file(tmp_path / "a", b"content")
    assert not any(tmp_path.iterdir())


def test_a_draft_that_stays_does_not_hide_that_the_name_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path) -> None:
        raise PermissionError(path)

    create_file(tmp_path / "a", b"first")
    monkeypatch.setattr(os, "unlink", busy)
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", b"second")


@pytest.mark.parametrize("maker", [identity_in, generation_in])
def test_those_who_come_first_agree(maker: Callable[[Path], str], tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / f"{number}"
        if maker is generation_in:
            folder.mkdir()
        barrier = Barrier(4)

        def asked(file: Path = folder / "file", barrier: Barrier = barrier) -> str:
            barrier.wait()
            return maker(file)

        with ThreadPoolExecutor(4) as pool:
            found = {each.result() for each in [pool.submit(asked) for _ in range(4)]}
        assert found == {maker(folder / "file")}
        assert [each.name for each in folder.iterdir()] == ["file"]


def test_the_folder_of_an_identity_is_for_its_owner_and_the_one_above_is_not_made(tmp_path: Path) -> None:
    identity_in(tmp_path / "hidden" / "identity")
    assert (tmp_path / "hidden").stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileNotFoundError):
        identity_in(tmp_path / "away" / "hidden" / "identity")
    assert not (tmp_path / "away").exists()


def test_a_generation_ends_with_its_file(tmp_path: Path) -> None:
    before = generation_in(tmp_path / "generation")
    assert generation_in(tmp_path / "generation") == before
    (tmp_path / "generation").rename(tmp_path / "former")
    assert generation_in(tmp_path / "generation") != before
