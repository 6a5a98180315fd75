"""Every fenced block of README and of docs/ is run, page by page, and prints what the page says."""

from __future__ import annotations

import re
from codeop import compile_command
from pathlib import Path

import pytest

from tests.docs.blocks import Page, pages, read
from tests.docs.running import Machine
from tests.support.repository import ROOT

PAGES = [read(path) for path in pages()]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
#: Blocks that are not run, each with a reason in its page: as few as there are today.
MOST_NOT_RUN = 12
#: Blocks of these are pictures, or what another block prints.
_NOT_CODE = {"", "mermaid", "text"}


def _with_code(page: Page) -> bool:
    return not page.run_by and any(block.kind not in _NOT_CODE and not block.not_run for block in page.blocks)


@pytest.mark.costly
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page), marks=[pytest.mark.spark] * page.needs_spark)
        for page in PAGES
        if _with_code(page) and page.path.name != "README.md"
    ],
)
def test_its_blocks_run(page: Page, request: pytest.FixtureRequest) -> None:
    if page.needs_spark:
        request.getfixturevalue("spark")
    machine: Machine = request.getfixturevalue("machine")
    if page.needs_mariadb:
        machine.mariadb = request.getfixturevalue("mariadb")
    machine.run(page)


README = next(page for page in PAGES if page.path == ROOT / "README.md")
RUN_IN_README = [
    pytest.param(n, marks=[pytest.mark.spark] * ("SparkSession" in block.text))
    for n, block in enumerate(README.blocks)
    if block.kind not in _NOT_CODE and not block.not_run
]


@pytest.mark.costly
@pytest.mark.parametrize(
    "number",
    [number for number, block in enumerate(README.blocks) if block.kind not in _NOT_CODE and not block.not_run],
)
def test_each_block_of_the_readme_runs_as_it_stands_in_an_empty_folder(
    number: int, request: pytest.FixtureRequest
) -> None:
    block = README.blocks[number]
    if "SparkSession" in block.text:
        request.getfixturevalue("spark")
    machine: Machine = request.getfixturevalue("machine")
    machine.one(block)
    for after in README.blocks[number + 1 : number + 2]:
        if after.kind == "text":
            machine.one(after)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page)) for page in PAGES if "tutorial" in page.path.parts])
def test_a_tutorials_python_can_be_pasted_into_an_interactive_python(page: Page) -> None:
    """There an empty line ends a compound statement, and nothing else does."""
    for block in page.blocks:
        if block.kind != "python" or block.text.startswith("# "):
            continue
        pending: list[str] = []
        for line in block.text.splitlines():
            pending.append(line)
            try:
                if compile_command("\n".join(pending), symbol="single") is not None:
                    pending = []
            except SyntaxError as error:
                raise AssertionError(f"{block}: {line!r}: {error}") from error


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    not_run = [block for page in PAGES for block in page.blocks if block.not_run]
    assert len(not_run) <= MOST_NOT_RUN, [f"{block}: {block.not_run}" for block in not_run]


def test_whoever_runs_a_page_names_it() -> None:
    for page in PAGES:
        assert not page.run_by or str(page) in (ROOT / page.run_by).read_text()


def test_every_marker_is_followed_by_its_block() -> None:
    for page in PAGES:
        text = page.path.read_text(encoding="utf-8")
        assert text.count("<!-- not run") == sum(bool(block.not_run) for block in page.blocks), str(page)
        assert text.count("\n```") + text.startswith("```") == 2 * len(page.blocks), f"{page}: a fence is not closed"


def test_every_block_says_what_it_is() -> None:
    known = {"", "python", "sh", "sql", "properties", "ini", "toml", "yaml", "mermaid", "text"}
    assert [str(block) for page in PAGES for block in page.blocks if block.kind not in known] == []


@pytest.mark.parametrize(
    "path",
    [*pages(), CONTRIBUTING, ROOT / "CHANGELOG.md"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_its_links_and_files_are_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text):
        assert "://" in target or (path.parent / target).exists(), target
    named = re.findall(r"`((?:tests|conf|txpool|recovery|docs|examples)/[\w./-]+)`", text)
    made = re.findall(r"^(?:#|--(?: in SQLite,)?) ([\w./-]+)$", text, re.MULTILINE)
    assert [file for file in named if not (ROOT / file).exists() and file not in made] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(TXPOOL_[A-Z_]+)\b", CONTRIBUTING.read_text()))))
def test_a_variable_that_contributors_may_set_is_read(name: str) -> None:
    files = (file for folder in ("tests", "txpool/testing") for file in (ROOT / folder).rglob("*.py"))
    assert any(f'"{name}"' in file.read_text() for file in files)
