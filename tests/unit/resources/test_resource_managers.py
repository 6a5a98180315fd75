"""How resource managers are found: by entry point, txpool's own also without any metadata."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT
from txpool import resource_managers
from txpool.config.settings import CoordinatorSettings, DataSourceSettings
from txpool.errors import ConfigurationError
from txpool.resource_managers import BUILT_IN, DRIVERS, GROUP, find_resource_manager, of_url
from txpool.resources.database import Database
from txpool.resources.driver.making import make_driver

Install = Callable[..., None]


class Missing(Database):
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
    monkeypatch.setattr(resource_managers, "_used", {})
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


@pytest.mark.parametrize(
    "line", ["from txpool.resources.local import LocalTransaction", "import txpool.resources.dialect"]
)
def test_one_that_imports_a_module_of_ours_that_has_moved_is_told_what_to_write(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "of_an_earlier_version.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "of_an_earlier_version", raising=False)
    install(earlier="of_an_earlier_version:MANAGER")
    for driver in ("earlier", "of_an_earlier_version:MANAGER"):
        with pytest.raises(ConfigurationError, match=r"is in txpool\.resource: import it from there"):
            find_resource_manager(driver)


def test_a_missing_driver_is_told_with_what_installs_it(install: Install) -> None:
    install(missing=f"{__name__}:MISSING")
    settings = DataSourceSettings.load(name="a", driver="missing", mode="local", url="missing://host/database")
    with pytest.raises(ConfigurationError, match=r"needs missing_driver.*pip install 'txpool-missing\[driver\]'"):
        make_driver(settings)


def test_an_unknown_one_is_refused_with_those_that_there_are(install: Install) -> None:
    install(another="a.package:MANAGER")
    with pytest.raises(
        ConfigurationError,
        match=" or ".join([*BUILT_IN, ""]),
    ):
        DataSourceSettings.load(name="a", driver="oracle", url="oracle://a/b")


@pytest.mark.parametrize("text", ["memory:", "\0", "\0/db?charset=utf8", "", "no url", "jdbc:x"])
def test_what_is_no_url_of_anybodys_imports_nothing(install: Install, text: str) -> None:
    install(loud="somebody.loud:MANAGER")
    assert of_url(text) is None
    assert set(resource_managers._loaded) <= set(BUILT_IN)


@pytest.mark.parametrize("value", ["tests.unit.resources.raising:MANAGER", "os:path"])
def test_a_damaged_package_changes_nothing_for_others(install: Install, value: str) -> None:
    install(damaged=value)
    assert of_url("elsewhere://host/database") is None
    with pytest.raises(ConfigurationError, match=r"driver 'damaged': .* (cannot be imported|is no resource manager)"):
        find_resource_manager("damaged")
    assert [each.database for each in resource_managers.known()] == [
        "PostgreSQL",
        "SQLite",
        *["MariaDB or MySQL"] * 2,
        "JDBC",
        "DuckDB",
        "Kafka",
        "JMS",
        "queues",
        "a folder of files",
        "an object store",
        "Iceberg",
        "a folder of Delta tables",
    ]


def test_an_import_that_fails_is_not_tried_again(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_once_only.py").write_text("import sys\nsys.failed = getattr(sys, 'failed', 0) + 1\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "failed", 0, raising=False)
    install(failing="failing_once_only:MANAGER")
    for _ in range(3):
        assert of_url("elsewhere://host/database") is None
    assert sys.failed == 1  # type: ignore[attr-defined]


def test_damaged_metadata_leaves_ours(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install()

    def raising(group: str) -> Any:
        raise TypeError("a line of somebody's metadata")

    monkeypatch.setattr(resource_managers, "entry_points", raising)
    assert list(DRIVERS) == [*BUILT_IN]
    assert of_url("elsewhere://host/database") is None


def test_a_url_alone_is_no_use_of_a_package(install: Install) -> None:
    install(missing=f"{__name__}:MISSING")
    found = of_url("missing://host/database")
    assert found is not None
    assert found.driver == "missing"
    assert [each.driver for each in resource_managers.known()] == [
        "psycopg",
        "sqlite3",
        "pymysql",
        "mysqlclient",
        "jdbc",
        "duckdb",
        "kafka",
        "jms",
        "sql-queue",
        "files",
        "s3",
        "iceberg",
        "delta",
    ]


def test_a_package_that_comes_later_is_found(install: Install) -> None:
    install()
    with pytest.raises(ConfigurationError, match="is not installed"):
        find_resource_manager("missing")
    entry = EntryPoint("missing", f"{__name__}:MISSING", GROUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource_managers, "entry_points", lambda group: [entry])
        assert find_resource_manager("missing").driver == "missing"


def test_a_package_that_comes_later_is_found_by_a_file_that_names_it(install: Install) -> None:
    install()
    assert list(DRIVERS) == [*BUILT_IN]
    entry = EntryPoint("missing", f"{__name__}:MISSING", GROUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource_managers, "entry_points", lambda group: [entry])
        settings = DataSourceSettings.load(name="a", driver="missing", mode="local", url="missing://host/database")
    assert settings.driver == "missing"


def test_a_url_of_ours_reads_no_metadata(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install()

    def reading(group: str) -> Any:
        raise AssertionError("nobody asks for it")

    monkeypatch.setattr(resource_managers, "entry_points", reading)
    for url, database in (("postgresql://a/b", "PostgreSQL"), ("sqlite:///a.db", "SQLite")):
        found = of_url(url)
        assert found is not None
        assert found.database == database
    assert "psycopg" in DRIVERS
