"""The README says what is true today."""

from __future__ import annotations

import re

import pytest

import txpool
from recovery.cli import ExitCode
from tests.support.repository import ROOT
from txpool.config.keys import COORDINATOR_KEYS, DATASOURCE_KEYS, RECOVERY_KEYS, Key, reference

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("keys", [DATASOURCE_KEYS, COORDINATOR_KEYS, RECOVERY_KEYS])
def test_it_has_the_reference_of_every_key(keys: tuple[Key, ...]) -> None:
    assert reference(keys).strip() in README


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_example_is_python() -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) >= 3
    for example in examples:
        compile(example, "README.md", "exec")


def test_it_names_nothing_that_is_not_there() -> None:
    named = set(re.findall(r"txpool\.([A-Za-z_]+)\(", README)) - {"properties"}
    assert {name for name in named if not hasattr(txpool, name)} == set()


def test_it_has_every_exit_code() -> None:
    for code in ExitCode:
        assert re.search(rf"\b{code.value} [a-z ]*{code.name.lower().split('_')[-1]}", README), code


def test_it_has_every_option_of_the_format() -> None:
    from txpool.spark.source import plan, reading

    missing = {option for option in (*plan.OPTIONS, *reading.OPTIONS) if f"`{option}`" not in README}
    assert missing == set()
