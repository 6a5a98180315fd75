"""The README says what is true today; what it has of code is run by tests/docs, as the other documents are."""

from __future__ import annotations

import re

import txpool
from tests.docs.blocks import read
from tests.support.repository import ROOT

README = (ROOT / "README.md").read_text()


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_every_example_is_python_of_a_dozen_lines() -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        compile(example, "README.md", "exec")
        assert len([line for line in example.splitlines() if line]) <= 14


def test_it_names_nothing_that_is_not_there() -> None:
    named = set(re.findall(r"txpool\.([A-Za-z_]+)\(", README)) - {"properties"}
    assert {name for name in named if not hasattr(txpool, name)} == set()


def test_its_ratios_are_those_of_the_page_of_what_was_measured() -> None:
    measured = (ROOT / "docs" / "explanation" / "measured.md").read_text()
    rows = re.findall(r"^\| .* \| (.*) \| (`python .*`) \|$", README, re.MULTILINE)
    assert rows
    assert [row for row in rows if f"| {row[0]} | {row[1]} |" not in measured] == []


def test_the_blocks_without_a_language_are_the_two_commands_of_ci() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    commands = [block.text.strip() for block in read(ROOT / "README.md").blocks if not block.kind]
    assert len(commands) == 2
    assert all(f'"{command}"' in ci for command in commands)
