"""The generated parts of the documents are what the code says today."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from itertools import chain
from types import ModuleType

import pytest

from tests.support.repository import ROOT


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The script of docs/."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_generated_part_is_up_to_date(generate: ModuleType) -> None:
    made = generate.parts()
    old = [str(page) for page in generate.pages() if generate.generated(page.read_text(), made) != page.read_text()]
    assert old == [], "run: python docs/generate.py"


def test_everything_that_is_made_stands_on_some_page(generate: ModuleType) -> None:
    text = "\n".join(page.read_text() for page in generate.pages())
    assert [name for name in generate.parts() if f"<!-- generated: {name} -->" not in text] == []


def test_the_first_page_names_the_versions_that_the_package_asks_for() -> None:
    text = (ROOT / "docs/index.md").read_text().lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    versions = dict(re.findall(r"^(psycopg|pyspark|pymysql|mysqlclient)\b[^>]*>=(\d+\.\d+)", "\n".join(asked), re.M))
    assert len(versions) == 4
    assert {name for name, version in versions.items() if f"{name} {version}" not in text} == set()
    pythons = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert f"python {', '.join(pythons)} |" in text
