"""A pytest plugin that runs the kit's cases, one test for each, against a datasource of the suite's own.

In conftest.py::

    pytest_plugins = ["txpool.conformance.plugin"]

    @pytest.fixture
    def conformance_datasource():
        return "conf/orders.properties"  # or a DataSource, or its settings

    @pytest.fixture
    def conformance_server(): ...  # an object with kill() and start(); without it, the case that kills is skipped

And in a test::

    def test_conformance(conformance):
        conformance()
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from txpool.config.settings import DataSourceSettings
from txpool.conformance.cases.case import Case, Verdict
from txpool.conformance.kit import CASES, run_cases
from txpool.conformance.server import KillableServer
from txpool.datasource import DataSource


@pytest.fixture
def conformance_server() -> KillableServer | None:
    """The server of the datasource, which the kit may kill and start; none, unless a suite overrides this fixture."""
    return None


@pytest.fixture
def conformance_patience() -> float:
    """How many seconds a branch may take until it can be ended from elsewhere."""
    return 30.0


@pytest.fixture(params=CASES, ids=[case.name for case in CASES])
def conformance(
    request: pytest.FixtureRequest,
    conformance_datasource: str | Path | DataSource | DataSourceSettings,
    conformance_server: KillableServer | None,
    conformance_patience: float,
) -> Callable[[], None]:
    """Call it: it runs one case, and fails the test with what the resource manager has done wrong."""
    case: Case = request.param
    settings = _settings_of(conformance_datasource)

    def run() -> None:
        __tracebackhide__ = True
        found = run_cases(settings, server=conformance_server, cases=[case], patience=conformance_patience)
        if found.trouble:
            said = f"the case could not be run: {found.trouble}", found.traceback
            pytest.fail("\n".join(filter(None, said)), pytrace=False)
        (result,) = found.results
        if result.verdict is Verdict.FAILED:
            pytest.fail("\n".join(filter(None, (f"{case.title}: {result.reason}", result.traceback))), pytrace=False)
        if found.left:
            pytest.fail(f"left behind: {'; '.join(found.left)}", pytrace=False)
        if result.verdict is not Verdict.PASSED:
            pytest.skip(result.reason)

    return run


def _settings_of(source: str | Path | DataSource | DataSourceSettings) -> DataSourceSettings:
    if isinstance(source, DataSource):
        return source.settings
    return source if isinstance(source, DataSourceSettings) else DataSourceSettings.load(source)
