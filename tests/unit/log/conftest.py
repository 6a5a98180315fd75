"""Every store of the decision log, opened as often as a test asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.log.stores import Opener
from txpool.config.secrets import Secret
from txpool.log import DecisionLog, MemoryDisk, MemoryLog, SqliteLog, SqlLog


@pytest.fixture(params=["memory", "sqlite", "sql"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same log once more, as another process of its node would."""
    disk = MemoryDisk("etl-1")
    databases = request.getfixturevalue("databases") if request.param == "sql" else None
    opened: list[DecisionLog] = []

    def opening() -> DecisionLog:
        if request.param == "memory":
            opened.append(MemoryLog(disk, node="etl-1"))
        elif request.param == "sql":
            password = Secret(databases.server.password)
            opened.append(SqlLog(databases.url("one"), node="etl-1", create=True, password=password))
        else:
            opened.append(SqliteLog(tmp_path / "log", node="etl-1", create=True))
        return opened[-1]

    yield opening
    for log in opened:
        log.close()


@pytest.fixture
def log(opener: Opener) -> DecisionLog:
    return opener()
