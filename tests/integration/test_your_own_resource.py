"""docs/your-own-resource.md is executed: its files are written, its commands are run, its table is the kit's."""

from __future__ import annotations

import importlib
import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT
from txpool.resource import Refused

TEXT = (ROOT / "docs/your-own-resource.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = _BLOCK.findall(TEXT)
COMMANDS = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]


class Place:
    """A folder with the files of the document."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports = folder / "reports"
        self.reports.mkdir()
        for kind, block in BLOCKS:
            if kind in ("python", "properties"):
                name = re.match(r"# (\S+)\n", block)
                assert name, block
                path = folder / name[1]
                path.write_text(block)
                path.chmod(0o600)
        with closing(sqlite3.connect(folder / "ledger.db")) as connection:
            connection.execute("create table published (day text primary key)")

    def run(self, command: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        words = command.split()
        if words[0] in ("txpool", "txpool-recovery"):
            words[:1] = ["python", "-m", words[0].partition("-")[2] or words[0]]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}", **variables}
        environment.pop("TXPOOL_CONF", None)
        done = subprocess.run(
            [sys.executable, *words[1:]], check=False, capture_output=True, text=True, cwd=self.folder, env=environment
        )
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
        return done

    def job(self, day: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(f"python job.py {day} of-{day}", check=check, **variables)

    def scan(self) -> None:
        self.run("txpool-recovery scan --conf recovery.properties")

    def files(self) -> list[str]:
        return sorted(each.name.removesuffix(".csv") for each in self.reports.iterdir() if each.name != ".txpool")

    def rows(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / "ledger.db")) as connection:
            return [day for (day,) in connection.execute("select day from published order by day")]

    def prepared(self) -> list[str]:
        """What is prepared; `new` where something is that was not prepared."""
        return sorted(each.parent.name for each in (self.reports / ".txpool").glob("*/*"))

    def marks(self) -> int:
        with closing(sqlite3.connect(self.folder / "ledger.db")) as connection:
            (count,) = connection.execute("select count(*) from xids where xid like 'txp1:_%:_%:_%'").fetchone()
            return int(count)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def initialised(place: Place) -> Place:
    place.run("txpool-recovery init --conf recovery.properties")
    return place


def test_every_command_of_the_document(place: Place) -> None:
    assert len(COMMANDS) >= 4
    for command in COMMANDS:
        place.run(command)
    assert (place.files(), place.rows()) == (["monday"], ["monday"])
    shown = place.run("txpool check proven.properties --conformance").stdout
    (table,) = [block for kind, block in BLOCKS if kind == "text"]
    assert [line.rstrip() for line in shown.splitlines() if line.strip()] == [
        line.rstrip() for line in table.splitlines() if line.strip()
    ]
    assert place.files() == ["monday"]
    assert place.prepared() == []


def test_its_pytest_suite(place: Place) -> None:
    done = place.run("python -m pytest -q -p no:cacheprovider test_reports.py")
    assert "8 passed, 5 skipped" in done.stdout


def test_it_is_published_once(place: Place) -> None:
    initialised(place).job("monday")
    again = place.job("monday", check=False)
    assert again.returncode == 1
    assert "UNIQUE" in again.stderr
    assert (place.files(), place.rows(), place.prepared()) == (["monday"], ["monday"], [])


@pytest.mark.crash
@pytest.mark.parametrize(
    ("point", "there"),
    [
        ("coordinator.marked", False),
        ("coordinator.preparing", False),
        ("coordinator.prepared", False),
        ("marked.committed", True),
        ("coordinator.decided", True),
        ("coordinator.one-committed", True),
        ("coordinator.committed", True),
    ],
)
def test_a_crash_anywhere_publishes_both_or_neither(point: str, there: bool, place: Place) -> None:
    initialised(place)
    done = place.job("monday", check=False, TXPOOL_FAILPOINTS=f"{point}=kill")
    assert done.returncode == -9, (done.stdout, done.stderr)
    place.scan()
    expected = ["monday"] if there else []
    assert (place.files(), place.rows(), place.marks()) == (expected, expected, 0)
    assert place.prepared() == (["new"] if point == "coordinator.marked" else [])
    place.job("tuesday")
    assert place.files() == [*expected, "tuesday"]


# -- what a copy of it does when things go wrong ------------------------------------------------------------------

XID = "txp1:etl-1:0123456789abcdef:1.0.x"


@pytest.fixture
def folder(place: Place, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The document's resource, in this process."""
    monkeypatch.syspath_prepend(str(place.folder))
    monkeypatch.delitem(sys.modules, "published", raising=False)
    made = importlib.import_module("published").Folder("reports", str(place.reports))
    made.identity()
    return made


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was made durable since, in this order."""
    found: list[Path] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fsync", record)
    return found


def prepare(folder: Any, *names: str) -> None:
    work = folder.begin()
    for name in names:
        work.write(name, b"x")
    work.prepare(XID)


def test_what_is_prepared_is_durable_with_every_folder_above(place: Place, synced: list[Path], folder: Any) -> None:
    prepare(folder, "a.csv")
    for needed in (place.reports, place.reports / ".txpool"):  # each has the next one's name
        assert needed in synced


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_23_what_another_has_ended_is_durable_before_it_counts_as_gone(
    verb: str, place: Place, folder: Any, synced: list[Path]
) -> None:
    """A process was killed after its step, before it was durable: the log must not forget the decision yet."""
    prepare(folder, "a.csv")
    file = place.reports / ".txpool" / XID / "a.csv"
    file.replace(place.reports / "a.csv") if verb == "commit" else file.unlink()
    synced.clear()
    assert getattr(folder, verb)(XID) is False
    assert {place.reports, place.reports / ".txpool"} <= set(synced)


def test_a_transaction_loses_none_of_its_files(place: Place, folder: Any) -> None:
    with pytest.raises(ValueError, match="one file"):
        prepare(folder, "a.csv", "b.csv")
    assert XID not in folder.prepared()


def test_a_file_that_was_not_written_whole_is_not_published(place: Place, folder: Any) -> None:
    work = folder.begin()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            work.write("a.csv", b"x" * 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(Refused):
        work.prepare(XID)
    work.rollback()
    assert place.prepared() == []


@pytest.mark.parametrize("name", ["../a.csv", "/tmp/txpool-own-resource.csv", ".txpool", "..", "", "b/a.csv"])
def test_a_name_leads_nowhere_else(name: str, folder: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        folder.begin().write(name, b"x")


def test_a_strangers_file_beside_it_does_not_let_it_count_as_gone(place: Place, folder: Any) -> None:
    prepare(folder, "a.csv")
    strange = place.reports / ".txpool" / XID / ".nfs0001"
    strange.touch()
    with pytest.raises(RuntimeError, match=r"\.nfs0001"):
        folder.commit(XID)
    assert XID in folder.prepared()
    strange.unlink()
    assert folder.commit(XID) is True
    assert place.files() == ["a"]


def test_a_folder_that_was_restored_has_another_generation(place: Place, folder: Any) -> None:
    before = folder.generation()
    saved = place.folder / "saved"
    shutil.copytree(place.reports, saved)
    shutil.rmtree(place.reports)
    shutil.copytree(saved, place.reports)  # file systems give numbers that have become free
    assert folder.generation() != before
    restored = folder.generation()
    prepare(folder, "a.csv")
    assert folder.commit(XID) is True
    assert folder.generation() == restored
