"""The judge accepts what serial transactions do, and rejects each planted fault by its name."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.judge import consistency
from tests.judge.__main__ import verdict
from tests.judge.atomicity import torn
from tests.judge.consistency import Level, anomalies
from tests.judge.history import Attempt, Key, Malformed, Read, Told, attempts, begins, ends
from tests.support.repository import ROOT

JUDGE = ROOT / "tests" / "judge"
A, B, FAR = Key("alpha", "a"), Key("alpha", "b"), Key("beta", "a")
Lists = dict[Key, list[str]]
SOME_KEYS = some.sets(some.sampled_from([A, B, FAR]))


def attempt(name: str, *appends: Key, reads: tuple[Read, ...] = (), told: Told = Told.COMMITTED) -> Attempt:
    return Attempt(name, frozenset(appends), told, list(reads))


def found(tried: list[Attempt], lists: Lists, level: Level = Level.SERIALIZABLE) -> list[str]:
    by_name = {each.name: each for each in tried}
    wrong = [*torn(by_name, lists)]
    for database in sorted({key.database for key in lists}):
        wrong += anomalies(by_name, lists, database, level)
    return wrong


@given(some.lists(some.tuples(SOME_KEYS, SOME_KEYS, some.sampled_from(Told)), max_size=30))
def test_serial_transactions_are_accepted(plans: list[tuple[set[Key], set[Key], Told]]) -> None:
    lists: Lists = {A: [], B: [], FAR: []}
    tried = []
    for number, (appends, reads, told) in enumerate(plans):
        name = str(number)
        seen = tuple(Read(key, (*lists[key], *([name] if key in appends else []))) for key in reads)
        tried.append(attempt(name, *appends, reads=seen, told=told))
        if told is not Told.ROLLED_BACK:
            for key in appends:
                lists[key].append(name)
    assert found(tried, lists) == []


TORN: dict[str, tuple[list[Attempt], Lists, str]] = {
    "torn": ([attempt("1", A, FAR)], {A: ["1"], FAR: []}, "1 is torn"),
    "torn, in doubt": ([attempt("1", A, FAR, told=Told.IN_DOUBT)], {A: ["1"], FAR: []}, "1 is torn"),
    "torn, told nothing": ([attempt("1", A, FAR, told=Told.NOTHING)], {A: [], FAR: ["1"]}, "1 is torn"),
    "lost": ([attempt("1", A, FAR)], {A: [], FAR: []}, "1 was told to be committed, and is nowhere"),
    "kept": ([attempt("1", A, told=Told.ROLLED_BACK)], {A: ["1"]}, "1 was told to be rolled back, and is in"),
    "twice": ([attempt("1", A)], {A: ["1", "1"]}, "1 was applied more than once"),
    "of nobody": ([], {A: ["1"]}, "nobody has appended it"),
    "elsewhere": ([attempt("1", A)], {A: ["1"], B: ["1"]}, "to which it did not append"),
}


@pytest.mark.parametrize("fault", TORN)
def test_what_is_not_atomic_is_rejected(fault: str) -> None:
    tried, lists, sentence = TORN[fault]
    wrong = found(tried, lists, Level.READ_COMMITTED)
    assert any(sentence in each for each in wrong), wrong


INCONSISTENT: dict[str, tuple[list[Attempt], Lists, Level, str]] = {
    "aborted read": (
        [attempt("1", A, told=Told.ROLLED_BACK), attempt("2", B, reads=(Read(A, ("1",)),))],
        {A: [], B: ["2"]},
        Level.READ_COMMITTED,
        "G1a",
    ),
    "no prefix": (
        [attempt("1", A), attempt("2", A), attempt("3", reads=(Read(A, ("2",)),))],
        {A: ["1", "2"]},
        Level.READ_COMMITTED,
        "which at its end is",
    ),
    "intermediate": (
        [attempt("1", A, reads=(Read(A, ("1", "2")),)), attempt("2", A)],
        {A: ["1", "2"]},
        Level.READ_COMMITTED,
        "before it ended",
    ),
    "writes in a circle": (
        [attempt("1", A, B), attempt("2", A, B)],
        {A: ["1", "2"], B: ["2", "1"]},
        Level.READ_COMMITTED,
        "G0",
    ),
    "reads in a circle": (
        [attempt("1", A, reads=(Read(B, ("2",)),)), attempt("2", B, reads=(Read(A, ("1",)),))],
        {A: ["1"], B: ["2"]},
        Level.READ_COMMITTED,
        "G1c",
    ),
    "half of a transaction seen": (
        [attempt("1", A, B), attempt("2", reads=(Read(A, ("1",)), Read(B, ())))],
        {A: ["1"], B: ["1"]},
        Level.SNAPSHOT,
        "G-single",
    ),
    "long fork": (
        [
            attempt("1", A),
            attempt("2", B),
            attempt("3", reads=(Read(A, ("1",)), Read(B, ()))),
            attempt("4", reads=(Read(A, ()), Read(B, ("2",)))),
        ],
        {A: ["1"], B: ["2"]},
        Level.SNAPSHOT,
        "G-nonadjacent",
    ),
    "lost update": (
        [attempt("1", A, reads=(Read(A, ("1",)),)), attempt("2", A, reads=(Read(A, ("2",)),))],
        {A: ["1", "2"]},
        Level.SNAPSHOT,
        "G-single",
    ),
    "a read that changes": (
        [attempt("1", A), attempt("2", reads=(Read(A, ()), Read(A, ("1",))))],
        {A: ["1"]},
        Level.SNAPSHOT,
        "G-single",
    ),
    "a value seen twice": (
        [attempt("1", A), attempt("2", reads=(Read(A, ("1", "1")),))],
        {A: ["1"]},
        Level.READ_COMMITTED,
        "which at its end is",
    ),
    "another order": (
        [attempt("1", A), attempt("2", A), attempt("3", reads=(Read(A, ("2", "1")),))],
        {A: ["1", "2"]},
        Level.READ_COMMITTED,
        "which at its end is",
    ),
    "itself where it is not": (
        [attempt("1", A), attempt("2", B, reads=(Read(A, ("1", "2")),))],
        {A: ["1"], B: ["2"]},
        Level.READ_COMMITTED,
        "to which it did not append",
    ),
    "write skew": (
        [attempt("1", A, reads=(Read(B, ()),)), attempt("2", B, reads=(Read(A, ()),))],
        {A: ["1"], B: ["2"]},
        Level.SERIALIZABLE,
        "G2",
    ),
}


@pytest.mark.parametrize("fault", INCONSISTENT)
def test_what_its_level_forbids_is_rejected(fault: str) -> None:
    tried, lists, level, sentence = INCONSISTENT[fault]
    wrong = found(tried, lists, level)
    assert any(each.startswith(sentence) or sentence in each for each in wrong), wrong


@pytest.mark.parametrize("fault", ["half of a transaction seen", "long fork", "lost update", "write skew"])
def test_what_a_weaker_level_allows_is_accepted(fault: str) -> None:
    tried, lists, level, _ = INCONSISTENT[fault]
    assert found(tried, lists, Level(level - 1)) == []


def test_a_line_that_its_writer_left_half_is_told_nothing() -> None:
    lines = [
        begins("1", [A]),
        begins("2", [A]),
        ends("1", "committed", [("alpha", "a", ["1"])]),
        ends("2", "in", [])[:9],
    ]
    assert {name: each.told for name, each in attempts(lines).items()} == {"1": Told.COMMITTED, "2": Told.NOTHING}


@pytest.mark.parametrize(
    "lines",
    [
        [begins("1", [A]), begins("1", [A])],
        [ends("1", "committed", [])],
        [begins("1", [A]), ends("1", "committed", []), ends("1", "committed", [])],
        [begins("1", [A]), ends("1", "nothing", []), ends("1", "committed", [])],
        [begins("1", [A]), ends("1", "gone", [])],
        ['{"begins": "1", "appends": [["alpha"]]}\n'],
        ['{"begins": "1", "app{"begins": "2", "appends": []}\n'],
        ["\n"],
        ["[]\n"],
    ],
)
def test_a_line_in_the_wrong_place_is_refused(lines: list[str]) -> None:
    with pytest.raises(Malformed):
        attempts(lines)


def _run(folder: Path, lists: object) -> subprocess.CompletedProcess[str]:
    (folder / "history").write_text(begins("1", [A, FAR]) + ends("1", "committed", []))
    (folder / "lists").write_text(json.dumps(lists))
    command = [sys.executable, "-m", "tests.judge", str(folder / "history"), str(folder / "lists"), "serializable"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_as_a_command(tmp_path: Path) -> None:
    whole = _run(tmp_path, {"alpha": {"a": ["1"]}, "beta": {"a": ["1"]}})
    assert (whole.returncode, whole.stdout) == (0, "atomic, and consistent\n")
    half = _run(tmp_path, {"alpha": {"a": ["1"]}, "beta": {"a": []}})
    assert half.returncode == 1
    assert half.stdout.startswith("1 is torn: in [")


def test_an_empty_history_is_no_proof(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("")
    (tmp_path / "lists").write_text("{}")
    assert verdict(tmp_path / "history", tmp_path / "lists", Level.SERIALIZABLE) == ["the history has no transaction"]


def test_what_was_read_in_a_database_without_lists_is_judged(tmp_path: Path) -> None:
    seen = begins("1", []) + ends("1", "committed", [("beta", "a", ["2"])])
    (tmp_path / "history").write_text(seen)
    (tmp_path / "lists").write_text("{}")
    (wrong,) = verdict(tmp_path / "history", tmp_path / "lists", Level.READ_COMMITTED)
    assert wrong.startswith("beta: G1a")


@pytest.mark.parametrize("count", [100, 1000])
def test_a_long_history_takes_no_more_for_each_transaction(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counted(steps: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def counting(*arguments: Any) -> Iterator[Any]:
            nonlocal looked
            looked += 1
            return steps(*arguments)

        return counting

    monkeypatch.setattr(consistency, "_behind", counted(consistency._behind))
    monkeypatch.setattr(consistency, "_apart", counted(consistency._apart))
    lists: Lists = {A: [], B: []}
    tried = []
    for number in range(count):
        mine, other = (A, B) if number % 2 else (B, A)
        tried.append(attempt(str(number), mine, reads=(Read(other, tuple(lists[other])),)))
        lists[mine].append(str(number))
    assert found(tried, lists) == []
    assert looked < 20 * count


def test_it_imports_nothing_of_what_it_judges() -> None:
    imported: set[str] = set()
    collect: Callable[[str], None] = imported.add
    for path in JUDGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                collect(node.module or "")
            elif isinstance(node, ast.Import):
                for name in node.names:
                    collect(name.name)
    assert {each for each in imported if each.split(".")[0] not in sys.stdlib_module_names} == {
        "tests.judge.atomicity",
        "tests.judge.consistency",
        "tests.judge.history",
    }
