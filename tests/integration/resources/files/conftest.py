"""A folder in which a datasource publishes, a marked ledger beside it, a log, and a recovery."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import txpool
from recovery import RecoveryManager
from txpool import failpoints
from txpool.files import StagedFolder


class PublishingSite:
    """A site whose datasource publishes folders of two files each."""

    def __init__(self, site: Path, name: str) -> None:
        self.site = site
        self.file = site / f"{name}.properties"

    def write(self, name: str, content: str, *, overwrite: bool = False) -> StagedFolder:
        """Stage a folder with two files in it."""
        staged = txpool.folder(self.file, name, overwrite=overwrite)
        for file in ("part-0.csv", "more/part-1.csv"):
            with staged.open(file) as part:
                part.write(content)
        return staged

    def whole(self, **contents: str) -> dict[str, str]:
        """What `published` returns if these folders are there."""
        files = {}
        for name, content in contents.items():
            files |= {f"{name}/part-0.csv": content, f"{name}/more/part-1.csv": content, f"{name}/_SUCCESS": ""}
        return files

    def scan(self) -> RecoveryManager:
        path = self.site / "recovery.properties"
        manager = RecoveryManager(path)
        manager.scan()
        return manager


class Exports(PublishingSite):
    """What is on the disk, as any program sees it; and what txpool keeps hidden there."""

    def __init__(self, site: Path) -> None:
        super().__init__(site, "exports")
        self.place = site / "exports"
        self.hidden = self.place / ".txpool"

    def published(self) -> dict[str, str]:
        """The contents of all files that a reader finds; of the marks their name alone."""
        found = {}
        for file in self.place.rglob("*"):
            if file.is_file() and self.hidden not in file.parents:
                found[str(file.relative_to(self.place))] = "" if file.name.startswith("_") else file.read_text()
        return found

    def left(self) -> list[str]:
        """What is prepared, and what is staged."""
        return sorted(each.name for folder in ("prepared", "staged") for each in (self.hidden / folder).iterdir())


def write_beside_a_ledger(folder: Path, name: str) -> None:
    """The files of a marked ledger, a coordinator, and a recovery of the datasource of this name."""
    (folder / "ledger.properties").write_text(
        f"name = ledger\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///{folder}/ledger.db\n"
    )
    common = f"node.name = etl\nlog.url = sqlite:///{folder}/txlog\n"
    (folder / "txpool.properties").write_text(f"{common}log.create = true\n")
    (folder / "recovery.properties").write_text(f"{common}datasources = {name}.properties\nrecovery.backoff = 0\n")


@pytest.fixture
def exports(tmp_path: Path) -> Iterator[Exports]:
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports.properties").write_text("name = exports\ndriver = files\nfolder = exports\n")
    write_beside_a_ledger(tmp_path, "exports")
    txpool.configure(tmp_path / "txpool.properties")
    yield Exports(tmp_path)
    failpoints.disarm()
    txpool.configure()


def gone() -> None:
    """This process's incarnation has ended, as far as recovery can see."""
    txpool.configure()
    gc.collect()
