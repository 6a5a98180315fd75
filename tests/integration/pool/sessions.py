"""The pool's sessions on the server, and how a test finds that none is lost."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.support.waiting import until
from txpool.datasource import DataSource

if TYPE_CHECKING:
    from tests.conftest import Databases

NAME = "pooled"


def sessions(databases: Databases) -> set[int]:
    """The server's sessions that are the pool's."""
    found = databases.rows("two", "select pid from pg_stat_activity where application_name = %s", [NAME])
    return {pid for (pid,) in found}


def kill(databases: Databases, *pids: int) -> None:
    databases.rows("two", "select pg_terminate_backend(pid, 5000) from unnest(%s::int[]) pid", [list(pids)])


def nothing_is_lost(datasource: DataSource, databases: Databases, size: int) -> None:
    """All places can be taken at once, by connections that work; the server has these and no other."""
    until(lambda: not datasource.statistics().taken)
    held = [datasource.connect(timeout=20) for _ in range(size)]
    pids = {connection.execute("select pg_backend_pid()").fetchone()[0] for connection in held}
    assert len(pids) == size
    with pytest.raises(txpool.PoolTimeout):
        datasource.connect(timeout=0)
    for connection in held:
        connection.close()
    # What was interrupted within the driver's own connect is in no place of the pool, and in the collector's hands.
    until(lambda: gc.collect() >= 0 and sessions(databases) == pids)
    assert datasource.statistics().size == size
