"""The fenced blocks of a page of Markdown, and what the page says of them.

A comment of Markdown before a block, or at the top of a page, tells how it is run:

- ``<!-- stands on: other.md -->``: the blocks of the other page are run first, in the same folder.
- ``<!-- cells -->``: the page's Python is run as a notebook's cells are, within a task of asyncio.
- ``<!-- run by: tests/….py -->``: another test runs its blocks.
- ``<!-- not run: reason -->``: the next block is not run.

A block of ``text`` is what the block before it prints; ``…`` in it stands for anything within a line, and a line of
``…`` alone for any number of lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.repository import ROOT

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!-- ([a-z ]+?)(?:: (.*?))? -->")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its page, its first line there, its language and its text."""

    page: Path
    line: int
    kind: str
    text: str
    #: Why it is not run; empty where it is.
    not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its blocks, the pages that it stands on, and whether its Python is run as cells."""

    path: Path
    blocks: tuple[Block, ...]
    stands_on: tuple[Path, ...]
    cells: bool
    #: The test that runs its blocks, where that is another one than test_pages.py.
    run_by: str

    @property
    def needs_spark(self) -> bool:
        """Whether a block works with a Spark session in the tests' process."""
        return any(block.kind == "python" and "SparkSession" in block.text for block in self.blocks)

    @property
    def needs_mariadb(self) -> bool:
        """Whether a block works with a MariaDB server."""
        return any(block.kind == "sql" and "MariaDB" in block.text for block in self.blocks)

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))


def pages() -> list[Path]:
    """README and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read(path: Path) -> Page:
    """Read a page."""
    text = path.read_text(encoding="utf-8")
    comments = [(match[1], match[2] or "") for match in _COMMENT.finditer(text)]
    stands_on = tuple((path.parent / of).resolve() for name, of in comments if name == "stands on")
    return Page(
        path,
        tuple(_blocks(path, text)),
        stands_on,
        cells=("cells", "") in comments,
        run_by=dict(comments).get("run by", ""),
    )


def _blocks(path: Path, text: str) -> Iterator[Block]:
    for match in _FENCE.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        comment = _COMMENT.fullmatch(before)
        reason = comment[2] if comment and comment[1] == "not run" else ""
        yield Block(path, text.count("\n", 0, match.start()) + 2, match[1], match[2], reason)
