"""Every store of the decision log, opened as often as a test asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.log_places import KINDS, place_of
from tests.unit.log.stores import Opener
from txpool.log import DecisionLog, MemoryDisk, MemoryLog, SqliteLog


@pytest.fixture(params=["memory", "sqlite", "sql", "mariadb", "mysql"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same log once more, as another process of its node would."""
    disk = MemoryDisk("etl-1")
    kind = {"sql": "postgresql"}.get(request.param, request.param)
    place = place_of(kind, request.getfixturevalue) if kind in KINDS else None
    opened: list[DecisionLog] = []

    def opening() -> DecisionLog:
        if request.param == "memory":
            opened.append(MemoryLog(disk, node="etl-1"))
        elif place is not None:
            opened.append(place.open("etl-1"))
        else:
            opened.append(SqliteLog(tmp_path / "log", node="etl-1", create=True))
        return opened[-1]

    yield opening
    for log in opened:
        log.close()


@pytest.fixture
def log(opener: Opener) -> DecisionLog:
    return opener()
