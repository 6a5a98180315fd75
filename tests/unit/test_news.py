"""Each file in news/ belongs to a part of CHANGELOG.md."""

from __future__ import annotations

import re
import tomllib

from tests.support.repository import ROOT

PARTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["fragment"]


def test_each_file_names_a_part_and_says_something() -> None:
    names = rf"[a-z0-9-]+\.({'|'.join(PARTS)})\.md"
    for path in (ROOT / "news").glob("[!.]*"):
        assert re.fullmatch(names, path.name), f"{path.name} is to be news/NAME.PART.md: {names}"
        assert re.match(r"[\w`\[]", path.read_text(encoding="utf-8")), f"{path.name} is to begin with a sentence"


def test_the_changelog_has_the_parts() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert [name for name in headings if name in {part["name"] for part in PARTS.values()}] == [
        part["name"] for part in PARTS.values()
    ]
    assert "<!-- towncrier release notes start -->\n\n## " in text
