"""docs/how-to/your-own-resource.md is executed: its files are written, its commands are run, its table is the kit's."""

from __future__ import annotations

import ast
import importlib
import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
import tokenize
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from io import StringIO
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.support.outbox import block
from tests.support.repository import ROOT
from txpool.resource import Refused

TEXT = (ROOT / "docs/how-to/your-own-resource.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = _BLOCK.findall(TEXT)
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
COMMANDS = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]


class Place:
    """A folder with the files of the document."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outbox = folder / "outbox"
        self.outbox.mkdir()
        for kind, text in BLOCKS:
            if kind in ("python", "properties"):
                name = re.match(r"# (\S+)\n", text)
                assert name, text
                path = folder / name[1]
                path.write_text(text)
                path.chmod(0o600)
        with closing(sqlite3.connect(folder / "ledger.db")) as connection:
            connection.execute("create table confirmed (number text primary key)")

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

    def job(self, order: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(f"python job.py {order} {order}", check=check, **variables)

    def scan(self) -> None:
        self.run("txpool-recovery scan --conf recovery.properties")

    def messages(self) -> list[str]:
        return sorted(each.read_text() for each in self.outbox.iterdir() if each.name != ".txpool")

    def rows(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / "ledger.db")) as connection:
            return [number for (number,) in connection.execute("select number from confirmed order by number")]

    def hidden(self) -> list[str]:
        """What is prepared, and what was left behind."""
        hidden = self.outbox / ".txpool"
        return sorted({each.name for each in hidden.iterdir()} - {"identity", "generation"}) if hidden.exists() else []

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


def test_the_resource_has_at_most_forty_lines_of_code() -> None:
    """Imports among them; blank lines, comments and docstrings not."""
    text = block("outbox.py")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    assert 30 < len(lines) <= 40


def test_its_python_is_as_tidy_as_our_own(place: Place) -> None:
    shutil.copy(ROOT / "pyproject.toml", place.folder)
    place.run("python -m ruff check --no-cache outbox.py proven.py job.py")
    place.run("python -m ruff format --no-cache --check outbox.py proven.py job.py")


def lines_of(table: str) -> list[str]:
    """Without the length of the line below its head, which rich draws as long as it likes."""
    return [re.sub("─+", "─", line.rstrip()) for line in table.splitlines() if line.strip()]


@pytest.mark.costly
def test_every_command_of_the_document(place: Place) -> None:
    assert len(COMMANDS) >= 4
    for command in COMMANDS:
        place.run(command)
    assert (place.messages(), place.rows()) == (["shipped"], ["1001"])
    shown = place.run("txpool check proven.properties --conformance").stdout
    (table,) = [text for kind, text in BLOCKS if kind == "text"]
    assert lines_of(shown) == lines_of(table)
    assert place.messages() == ["shipped"]
    assert place.hidden() == []


def test_its_pytest_suite(place: Place) -> None:
    done = place.run("python -m pytest -q -p no:cacheprovider test_outbox.py")
    assert "12 passed, 5 skipped" in done.stdout


def test_it_is_sent_once(place: Place) -> None:
    initialised(place).job("1001")
    again = place.job("1001", check=False)
    assert again.returncode == 1
    assert "UNIQUE" in again.stderr
    assert (place.messages(), place.rows(), place.hidden()) == (["1001"], ["1001"], [])


@pytest.mark.costly
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
def test_a_crash_anywhere_sends_both_or_neither(point: str, there: bool, place: Place) -> None:
    initialised(place)
    done = place.job("1001", check=False, TXPOOL_FAILPOINTS=f"{point}=kill")
    assert done.returncode == -9, (done.stdout, done.stderr)
    place.scan()
    expected = ["1001"] if there else []
    assert (place.messages(), place.rows(), place.marks(), place.hidden()) == (expected, expected, 0, [])
    place.job("1002")
    assert place.messages() == [*expected, "1002"]


# -- what a copy of it does when things go wrong ------------------------------------------------------------------

XID = "txp1:etl-1:0123456789abcdef:1.0.x"


@pytest.fixture
def outbox(place: Place, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The document's resource, in this process."""
    monkeypatch.syspath_prepend(str(place.folder))
    monkeypatch.delitem(sys.modules, "outbox", raising=False)
    made = importlib.import_module("outbox").Outbox("outbox", str(place.outbox))
    made.identity()
    made.generation()
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


def prepare(outbox: Any, content: bytes = b"x") -> None:
    work = outbox.begin()
    work.write(content)
    work.prepare(XID)


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_23_what_another_has_ended_is_durable_before_it_counts_as_gone(
    verb: str, place: Place, outbox: Any, synced: list[Path]
) -> None:
    """A process was killed after its step, before it was durable: the log must not forget the decision yet."""
    prepare(outbox)
    file = place.outbox / ".txpool" / XID
    file.rename(place.outbox / XID) if verb == "commit" else file.unlink()
    synced.clear()
    assert getattr(outbox, verb)(XID) is False
    assert {place.outbox, place.outbox / ".txpool"} <= set(synced)


def test_all_that_a_transaction_writes_is_one_message(place: Place, outbox: Any) -> None:
    work = outbox.begin()
    work.write(b"one,")
    with pytest.raises(TypeError):
        work.write("a text, which has no bytes")
    work.write(b"two")
    work.prepare(XID)
    assert outbox.commit(XID) is True
    assert place.messages() == ["one,two"]


def test_a_message_that_the_disk_has_no_room_for_is_not_prepared(place: Place, outbox: Any) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            prepare(outbox, b"x" * 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert outbox.rollback(XID) is False
    assert place.hidden() == []


def test_a_name_that_is_taken_is_refused_and_its_message_stays_as_it_was(place: Place, outbox: Any) -> None:
    prepare(outbox, b"first")
    with pytest.raises(Refused, match="already"):
        prepare(outbox, b"second")
    assert place.hidden() == [XID]
    assert outbox.commit(XID) is True
    assert (place.messages(), place.hidden()) == (["first"], [])


def at_once(*actions: Callable[[], object]) -> list[object]:
    """What each of them has answered."""
    with ThreadPoolExecutor(len(actions)) as pool:
        barrier = Barrier(len(actions))
        return [each.result() for each in [pool.submit(lambda a: (barrier.wait(), a())[1], a) for a in actions]]


def test_of_many_that_finish_at_once_one_does(place: Place, outbox: Any) -> None:
    verbs = ["commit", "rollback"] * 3
    for _ in range(20):
        prepare(outbox)
        answers = at_once(*(partial(getattr(outbox, verb), XID) for verb in verbs))
        assert answers.count(True) == 1
        won = verbs[answers.index(True)]
        assert (place.messages(), place.hidden()) == (["x"] if won == "commit" else [], [])
        (place.outbox / XID).unlink(missing_ok=True)


def test_of_many_that_prepare_one_name_at_once_one_does(place: Place, outbox: Any) -> None:
    def attempt(content: bytes) -> bool:
        try:
            prepare(outbox, content)
        except Refused:
            return False
        return True

    for _ in range(20):
        answers = at_once(*(partial(attempt, b"%d" % number) for number in range(6)))
        assert answers.count(True) == 1
        assert place.hidden() == [XID]
        assert outbox.commit(XID) is True
        assert place.messages() == [str(answers.index(True))]
        (place.outbox / XID).unlink()


def test_a_folder_that_is_not_there_is_not_an_empty_one(place: Place, outbox: Any) -> None:
    """As where it is not mounted: nothing in it may count as gone."""
    prepare(outbox)
    place.outbox.rename(place.folder / "elsewhere")
    for ask in (outbox.identity, outbox.prepared, lambda: outbox.commit(XID), lambda: outbox.rollback(XID)):
        with pytest.raises(FileNotFoundError):
            ask()
    assert not place.outbox.exists()


def test_a_folder_that_was_restored_has_another_generation(place: Place, outbox: Any) -> None:
    before = outbox.generation()
    saved = place.folder / "saved"
    shutil.copytree(place.outbox, saved)
    shutil.rmtree(place.outbox)
    time.sleep(0.02)  # longer than a tick of the clock of file systems
    shutil.copytree(saved, place.outbox)  # file systems give numbers that have become free
    assert outbox.generation() != before
    restored = outbox.generation()
    prepare(outbox)
    assert outbox.commit(XID) is True
    assert outbox.generation() == restored
