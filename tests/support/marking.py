"""Markers that follow from where a test stands and which fixtures it uses; `slow` and `costly` are also set by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.support.repository import ROOT

#: Whoever uses one of these kills processes or servers, or has them stand still.
_KILLING = {"any_site", "cluster", "local_cluster", "site", "spark_process", "web_site"}
#: Where every test does.
_FOLDERS = frozenset(ROOT / "tests" / each for each in ("crash", "integration/recovery", "integration/tracing"))
#: Where every test starts a Java, the whole kit, or what a former version has left: together they take minutes.
_SLOW_FOLDERS = frozenset(ROOT / "tests/integration" / each for each in ("resources/jdbc", "conformance", "upgrade"))
#: Each of these starts a Spark of the test's own.
OWN_SPARK = {"cluster", "local_cluster", "spark_process"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if _is_below(item.path, _FOLDERS) or fixtures & _KILLING:
            item.add_marker("crash")
        if "spark" in fixtures:
            item.add_marker("spark")
        if fixtures & OWN_SPARK:
            item.add_marker("costly")
        # Spark alone takes most of a minute to start.
        if _is_below(item.path, _SLOW_FOLDERS) or any(map(item.get_closest_marker, ("costly", "spark"))):
            item.add_marker("slow")


@cache
def _is_below(path: Path, folders: frozenset[Path]) -> bool:
    return not folders.isdisjoint(path.parents)
