"""A database behind a pool, and an interrupt of the thread that uses it.

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

from tests.models.pool import PoolDatabase


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
    """Interrupt the main thread with a real SIGINT, even where the tests run with that ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)
