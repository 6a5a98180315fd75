"""What the tests of the pool share, and those of settings.

Names of the pool's tests are psycopg_pool's where its users know the behaviour.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import txpool
from tests.models.pool import PoolDatabase
from tests.unit.web.wsgi_server import Server


@pytest.fixture
def database(tmp_path: Path) -> Iterator[PoolDatabase]:
    database = PoolDatabase(tmp_path / "one.db")
    with closing(database.connect()) as raw:
        raw.execute("create table t (x)")
    database.live.clear()
    database.connects = database.most_live = 0
    database.connecting = threading.Semaphore(0)
    yield database
    database.gate.set()
    gc.collect()
    assert not database.live, "connections are left open"


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Strike the main thread with a real SIGINT, even where the tests run with that ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory of the test's own, and no configuration around it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TXPOOL_CONF", raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A WSGI server that notes what it hears, and a database behind it."""
    txpool.configure(node_name="unit-test")
    server = Server(tmp_path)
    with server.datasource:
        yield server
