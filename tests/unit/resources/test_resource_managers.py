"""How resource managers are found: by entry point, txpool's own also without any metadata."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from tests.support.repository import ROOT
from txpool import resource_managers
from txpool.config.settings import CoordinatorSettings, DataSourceSettings
from txpool.errors import ConfigurationError
from txpool.resource_managers import BUILT_IN, DRIVERS, GROUP, find_resource_manager, of_url
from txpool.resources.drivers import make_driver
from txpool.resources.manager import ResourceManager

Install = Callable[..., None]


class Missing(ResourceManager):
    """One whose database's own driver is not installed."""

    driver = "missing"
    database = "Missing"
    schemes = ("missing://",)
    url_example = "missing://host/database"
    modes = ("local",)
    requirement = "txpool-missing[driver]"

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Any:
        raise ModuleNotFoundError("No module named 'missing_driver'", name="missing_driver")

    @property
    def handle(self) -> Any:
        raise AssertionError("nothing is connected")


MISSING = Missing()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Entry points of other packages, as they would be found."""

    def these(**entries: str) -> None:
        found = [EntryPoint(name.rstrip("_"), value, GROUP) for name, value in entries.items()]
        monkeypatch.setattr(resource_managers, "entry_points", lambda group: found)
        resource_managers._entries.cache_clear()

    monkeypatch.setattr(resource_managers, "_loaded", {})
    yield these
    resource_managers._entries.cache_clear()


def test_ours_are_the_entry_points_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"][GROUP] == BUILT_IN
    for driver in BUILT_IN:
        assert find_resource_manager(driver).driver == driver


def test_another_package_takes_none_of_our_names(install: Install) -> None:
    install(psycopg="somebody.elses:MANAGER")
    assert find_resource_manager("psycopg").database == "PostgreSQL"


def test_a_name_that_two_packages_have_is_an_error(install: Install) -> None:
    install(both="one.package:MANAGER", both_="another.package:MANAGER")
    assert "both" in DRIVERS
    with pytest.raises(ConfigurationError, match=r"several packages: another\.package:MANAGER, one\.package:MANAGER"):
        find_resource_manager("both")


def test_one_that_cannot_be_imported_is_told_to_whoever_names_it_alone(install: Install) -> None:
    install(broken="no.such.package:MANAGER")
    assert of_url("elsewhere://host/database") is None
    assert CoordinatorSettings.load(node_name="a", log_url="memory:").log_url == "memory:"
    with pytest.raises(ConfigurationError, match=r"driver 'broken': no\.such\.package:MANAGER cannot be imported"):
        DataSourceSettings.load(name="a", driver="broken", url="broken://a/b")


def test_a_missing_driver_is_told_with_what_installs_it(install: Install) -> None:
    install(missing=f"{__name__}:MISSING")
    settings = DataSourceSettings.load(name="a", driver="missing", mode="local", url="missing://host/database")
    with pytest.raises(ConfigurationError, match=r"needs missing_driver.*pip install 'txpool-missing\[driver\]'"):
        make_driver(settings)


def test_an_unknown_one_is_refused_with_those_that_there_are(install: Install) -> None:
    install(another="a.package:MANAGER")
    with pytest.raises(ConfigurationError, match="psycopg or sqlite3 or another"):
        DataSourceSettings.load(name="a", driver="oracle", url="oracle://a/b")
