"""What the former version has left, made anew for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.upgrade.former import APP, Former, Make, drop


@pytest.fixture
def former(databases: Any, tmp_path: Path) -> Iterator[Make]:
    """`former(store)`: with the log of that store, "sqlite" or "server"."""
    password = databases.server.password
    databases.execute("one", f"create role {APP} login password '{password}'")
    yield lambda store: Former(tmp_path, databases, store)
    drop(databases)
