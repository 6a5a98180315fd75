"""The generated parts of the documents are what the code says today."""

from __future__ import annotations

import importlib.util
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
