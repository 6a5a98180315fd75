"""A resource manager that was written for commit b2d6ccd: flat attributes, and no class of databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from txpool import DataSource, resource_managers
from txpool.config.settings import DataSourceSettings
from txpool.resource_managers import GROUP, find_resource_manager
from txpool.resources.database import Database
from txpool.resources.driver.driver import Driver
from txpool.resources.manager import ResourceManager
from txpool.resources.parts import SparkPart
from txpool.resources.sqlite.manager import SQLite


class Former(ResourceManager):
    """Written as for b2d6ccd, over this package's driver of SQLite."""

    driver = "former"
    database = "Former"
    schemes = ("former:///",)
    url_example = "former:///file.db"
    url_is_path = True
    modes = ("local",)
    sqlalchemy_url = "sqlite+pysqlite://"
    spark_write = "somebody.spark:Write"
    spark_tasks = ""
    why_no_tasks = "is a file"
    counts_slots = False
    log_server = "somebody.log:Server"
    log_schemes = ("former:///",)
    connected = 0

    def is_dsn(self, text: str) -> bool:
        return text.startswith("former=")

    def url_of(self, dsn: str) -> tuple[str, str | None]:
        return dsn.replace("former=", "former:///"), None

    def make_driver(self, settings: DataSourceSettings, *, recovery: bool = False) -> Driver:
        return SQLite().make_driver(settings)

    @property
    def handle(self) -> Any:
        return SQLite().handle

    def connected_by_sqlalchemy(self, connection: Any, arguments: Mapping[str, Any]) -> None:
        self.connected += 1


@pytest.fixture
def former(monkeypatch: pytest.MonkeyPatch) -> Iterator[Former]:
    monkeypatch.setattr(resource_managers, "_loaded", {})
    monkeypatch.setattr(resource_managers, "_used", {})
    monkeypatch.setitem(globals(), "FORMER", Former())
    entry = EntryPoint("former", f"{__name__}:FORMER", GROUP)
    monkeypatch.setattr(resource_managers, "entry_points", lambda group: [entry])
    resource_managers._entries.cache_clear()
    yield globals()["FORMER"]
    resource_managers._entries.cache_clear()


def test_it_loads_with_a_warning_that_says_what_to_write(former: Former, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="Former is deprecated") as caught:
        manager = find_resource_manager("former")
    (warning,) = caught
    text = str(warning.message)
    assert "derive it from txpool.resource.Database" in text
    for name in ("sqlalchemy_url", "spark_write", "log_server", "is_dsn"):
        assert f"{name}: " in text
    assert manager is former
    assert isinstance(manager, Database)
    assert manager.spark == SparkPart("somebody.spark:Write", why_no_tasks="is a file")
    assert manager.log is not None
    assert (manager.log.server, manager.log.schemes) == ("somebody.log:Server", ("former:///",))
    assert manager.dsn is not None
    assert manager.dsn.matches("former=a.db")
    assert manager.dsn.url_of("former=a.db") == ("former:///a.db", None)
    assert manager.sqlalchemy is not None
    assert manager.sqlalchemy.connected is not None
    manager.sqlalchemy.connected(None, {})  # type: ignore[arg-type]
    assert former.connected == 1


def test_it_serves_connections(former: Former, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)):
        pass
    with pytest.warns(DeprecationWarning, match="Former"):
        find_resource_manager("former")
    monkeypatch.setattr(Former, "schemes", ("sqlite:///",))  # which the driver reads
    with (
        DataSource(name="a", driver="former", mode="local", url=f"sqlite:///{path}") as source,
        closing(source.connect()) as connection,
    ):
        assert connection.execute("select 1").fetchall() == [(1,)]


class Today(SQLite):
    """Derived from one of this package, with a flat attribute."""

    sqlalchemy_url = "sqlite+other://"


def test_one_that_is_a_database_already_is_told_its_flat_attributes(
    former: Former, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "FORMER", Today())
    with pytest.warns(DeprecationWarning, match="sqlalchemy_url") as caught:
        manager = find_resource_manager("former")
    assert "derive it" not in str(caught[0].message)
    assert manager.sqlalchemy is not None
    assert manager.sqlalchemy.url == "sqlite+other://"
