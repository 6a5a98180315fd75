"""Datasources for the kit, and resource managers of the tests' own in the place of entry points."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from txpool import resource_managers
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.resources.manager import ResourceManager

if TYPE_CHECKING:
    from tests.conftest import Databases

    SettingsOf = Callable[..., DataSourceSettings]


@pytest.fixture
def settings_of(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SettingsOf:
    """`settings_of("xa")`: a datasource in PostgreSQL; with a class of resource managers, in that one's database."""

    def settings_of(
        mode: str, kind: type[ResourceManager] | str = "psycopg", name: str = "orders"
    ) -> DataSourceSettings:
        driver = kind if isinstance(kind, str) else f"{kind.driver}-{kind.__name__}"
        if not isinstance(kind, str):
            monkeypatch.setitem(resource_managers.BUILT_IN, driver, "the tests' own")
            monkeypatch.setitem(resource_managers._loaded, driver, kind())
        if driver.startswith("sqlite3"):
            path = tmp_path / "kit.db"
            with closing(sqlite3.connect(path)) as first:
                first.execute("pragma journal_mode = wal")
            return DataSourceSettings.load(
                name=name, driver=driver, mode=mode, url=f"sqlite:///{path}", driver_timeout="1"
            )
        databases: Databases = request.getfixturevalue("databases")
        password = Secret(databases.server.password)
        return DataSourceSettings.load(name=name, driver=driver, mode=mode, url=databases.url("one"), password=password)

    return settings_of
