"""Closing a pool, or forgetting it: its connections, those who wait, and its thread."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Thread

import pytest

from tests.models.pool import PoolDatabase, Raw, pool_of, use, waiting
from tests.support.waiting import until
from txpool.errors import PoolClosed
from txpool.pool import Pool


def maintenance_of(name: str) -> list[Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"txpool-pool-{name}"]


def test_closed_getconn(database: PoolDatabase) -> None:
    with pool_of(database) as pool:
        use(pool)
        pool.close()
        pool.close()
        for attempt in (pool.take, pool.wait_ready):
            with pytest.raises(PoolClosed, match="orders"):
                attempt()
        assert not database.live


def test_closed_queue(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1, max_wait=3600) as pool, ThreadPoolExecutor(3) as threads:
        held = pool.take()
        results = [threads.submit(pool.take) for _ in range(3)]
        until(lambda: waiting(pool) == 3)
        pool.close()
        assert [type(result.exception(20)) for result in results] == [PoolClosed] * 3
        pool.give_back(held)


def test_close_connection_on_pool_close(database: PoolDatabase) -> None:
    """Idle ones are closed now, taken ones work on and are closed when they come back."""
    with pool_of(database) as pool:
        held, idle = pool.take(), pool.take()
        pool.give_back(idle)
        pool.close()
        assert database.live == {held.raw}
        assert held.raw.execute("select 1").fetchone() == (1,)
        pool.give_back(held)
        assert not database.live


def test_close_while_connecting(database: PoolDatabase) -> None:
    """A connection that arrives after the close is closed, not handed out."""
    database.gate.clear()
    with pool_of(database) as pool, ThreadPoolExecutor(1) as threads:
        late = threads.submit(pool.take)
        assert database.connecting.acquire(timeout=60)
        pool.close()
        database.gate.set()
        assert isinstance(late.exception(20), PoolClosed)
        assert not database.live


def test_close_ends_the_thread(database: PoolDatabase) -> None:
    with closing(Pool(database, name="ends", min_size=1)) as pool:
        pool.wait_ready(20)
        assert len(maintenance_of("ends")) == 1
    assert not maintenance_of("ends")


def test_no_thread_without_need(database: PoolDatabase) -> None:
    with closing(Pool(database, name="idle")):
        assert not maintenance_of("idle")


def test_del_stops_threads(database: PoolDatabase) -> None:
    """A pool that is forgotten ends its thread and closes its connections, without the collector's help."""
    gc.disable()
    try:
        pool = Pool(database, name="forgotten", min_size=2)
        pool.wait_ready(20)
        (thread,) = maintenance_of("forgotten")
        del pool
        thread.join(60)
        assert not thread.is_alive()
        assert not database.live
    finally:
        gc.enable()


def test_thread_does_not_inherit_the_context(database: PoolDatabase) -> None:
    from contextvars import ContextVar

    ambient: ContextVar[str] = ContextVar("ambient")
    seen: list[str] = []

    class Looking(PoolDatabase):
        def connect(self, timeout: float | None = None) -> Raw:
            seen.append(ambient.get("nothing"))
            return super().connect()

    ambient.set("a transaction")
    looking = Looking(database.path)
    with pool_of(looking, min_size=1) as pool:
        pool.wait_ready(20)
    assert seen == ["nothing"]
