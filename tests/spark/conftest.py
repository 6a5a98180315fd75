"""What the tests of write_table() stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool.datasource
from txpool.manager import configure

if TYPE_CHECKING:
    from conftest import Databases


@pytest.fixture
def sources(databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory: a decision log, and a file for each database, with its password by reference."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(databases.server.password)
    for name in (databases.one, databases.two):
        describe(tmp_path, name, databases.url(name))
    manager = configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    yield tmp_path
    for datasource in set(txpool.datasource.known().values()):
        datasource.close()
    manager.close()


def describe(folder: Path, name: str, url: str, *more: str) -> None:
    """Write a datasource's file. Workers keep their pools from test to test, and each begins by ending all sessions."""
    lines = [f"name = {name}", "driver = psycopg", f"url = {url}", "password = ${file:secret}", "pool.check-bypass = 0"]
    (folder / f"{name}.properties").write_text("\n".join([*lines, *more, ""]))
