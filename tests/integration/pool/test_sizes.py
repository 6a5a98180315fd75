"""The pool's size: after a restart of the server, a spike, a keepalive, a reset, close() and a fork."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

import txpool
from tests.integration.pool.sessions import kill, nothing_is_lost, sessions
from tests.support.forking import in_child
from tests.support.waiting import until
from txpool.datasource import DataSource

if TYPE_CHECKING:
    from tests.conftest import Databases


def test_reconnect_after_a_restart_of_the_server(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_min_size=2, pool_max_size=3, pool_check_bypass="0")
    datasource.pool.wait_ready()
    held = datasource.connect()
    held.execute("select 1")
    databases.server.stop("immediate")
    with pytest.raises(psycopg.OperationalError):
        held.execute("select 1")
    held.close()
    with pytest.raises(psycopg.OperationalError):
        datasource.connect()
    databases.server.start()
    with closing(datasource.connect()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    datasource.pool.wait_ready()
    nothing_is_lost(datasource, databases, 3)


def test_grow_spike_and_shrink(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_min_size=1, pool_max_size=5, pool_idle_timeout="300ms")
    datasource.pool.wait_ready()
    assert len(sessions(databases)) == 1
    with ThreadPoolExecutor(5) as threads:
        barrier = threading.Barrier(5)

        def work() -> None:
            with closing(datasource.connect()) as connection:
                connection.execute("select 1")
                barrier.wait()

        for future in [threads.submit(work) for _ in range(5)]:
            future.result(60)
    assert datasource.statistics().size == 5
    until(lambda: len(sessions(databases)) == 1)
    assert datasource.statistics().size == 1


def test_keepalive_finds_the_dead_and_replaces_them(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_min_size=2, pool_max_size=4, pool_keepalive="100ms")
    datasource.pool.wait_ready()
    before = sessions(databases)
    kill(databases, *before)
    until(lambda: datasource.statistics().check_failures >= 2)
    until(lambda: len(sessions(databases)) == 2)
    assert not sessions(databases) & before


def test_reset_and_a_reset_that_fails(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_max_size=1)
    with closing(datasource.connect()) as connection:
        pid = connection.info.backend_pid
        connection.execute("set work_mem to '1MB'")
        connection.commit()
    with closing(datasource.connect()) as connection:
        assert connection.info.backend_pid == pid
        assert connection.execute("show work_mem").fetchone() != ("1MB",)
        connection.execute("set work_mem to '1MB'")
        connection.commit()
        kill(databases, pid)
    assert datasource.statistics().reset_failures == 1
    nothing_is_lost(datasource, databases, 1)


def test_close_with_connections_taken(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_max_size=2, pool_max_wait=60)
    held = [datasource.connect(), datasource.connect()]
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(datasource.connect)
        until(lambda: datasource.statistics().waiting == 1)
        datasource.close()
        assert isinstance(waiter.exception(30), txpool.PoolClosed)
    assert held[0].execute("select 1").fetchone() == (1,)
    for connection in held:
        connection.close()
    until(lambda: not sessions(databases))
    assert datasource.statistics().closed
    assert not [thread for thread in threading.enumerate() if thread.name == f"txpool-pool-{datasource.name}"]


def test_fork_with_connections_of_all_kinds(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_max_size=3, pool_keepalive="50ms")
    held = datasource.connect()
    datasource.connect().close()
    separate = datasource.connect(user=databases.server.user, password=databases.server.password)
    before = sessions(databases)
    assert len(before) == 3

    def child() -> None:
        with closing(datasource.connect()) as connection:
            (pid,) = connection.execute("select pg_backend_pid()").fetchone()
        assert pid not in before
        assert datasource.statistics().size == 1
        held.close()
        separate.close()
        datasource.close()

    in_child(child)
    for connection in (held, separate):
        assert connection.execute("select 1").fetchone() == (1,)
        connection.close()
    nothing_is_lost(datasource, databases, 3)
