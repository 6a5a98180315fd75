"""Markers that follow from where a test stands and which fixtures it uses; only `slow` is also set by hand."""

from __future__ import annotations

import pytest

from tests.support.repository import ROOT

#: Whoever uses one of these kills processes or servers, or has them stand still.
_KILLING = {"any_site", "cluster", "local_cluster", "site", "spark_process", "web_site"}
#: Where every test does.
_FOLDERS = [ROOT / "tests" / each for each in ("crash", "integration/recovery", "integration/tracing")]
#: Each of these starts a Spark of the test's own.
_OWN_SPARK = {"cluster", "local_cluster", "spark_process"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if not {*item.path.parents}.isdisjoint(_FOLDERS) or fixtures & _KILLING:
            item.add_marker("crash")
        if fixtures & _OWN_SPARK:
            item.add_marker("slow")
    # The longest come first: at the end of a run, no process waits for the other's last test.
    items.sort(key=lambda item: _OWN_SPARK.isdisjoint(getattr(item, "fixturenames", ())))
