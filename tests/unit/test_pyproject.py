"""What the package asks for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from tests.support.repository import ROOT

#: What pip builds in C on Linux, for want of a wheel: a compiler and headers would be needed.
BUILT = {"mysqlclient", "psycopg-c", "psycopg2"}

#: Lines that leave a rule of ruff out: a folder's exceptions stand in pyproject.toml.
MOST_LEFT_OUT = 60

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def asked(extra: str) -> Iterator[str]:
    """The packages of an extra and of those that it names, and the extras of packages: `mkdocs`, `psycopg[c]`."""
    for each in PROJECT["optional-dependencies"][extra]:
        found = re.match(r"([A-Za-z0-9_.-]+)(?:\[([^]]+)\])?", each)
        assert found, each
        own = found[2].replace(" ", "").split(",") if found[2] else []
        if found[1] == PROJECT["name"]:
            for other in own:
                yield from asked(other)
        else:
            name = re.sub(r"[-_.]+", "-", found[1]).lower()
            yield from (name, *(f"{name}-{each}" for each in own))


def test_nothing_has_to_be_built_for_the_demo_the_tests_and_development() -> None:
    for extra in ("demo", "test", "dev", "docs"):
        assert BUILT.isdisjoint(asked(extra))
    assert set(asked("mysqlclient")) == {"mysqlclient"}


def test_few_lines_leave_a_rule_out() -> None:
    folders = ("docs", "examples", "recovery", "tests", "txpool")
    sources = (path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert sum(source.count("# noqa") for source in sources) <= MOST_LEFT_OUT
