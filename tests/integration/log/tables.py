"""What the log's tables say, read by bare psycopg, and what is waited for on its server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from tests.support.children import Child
from txpool.log import SqlLog
from txpool.log.lease import key_of
from txpool.xid import make_gtrid

if TYPE_CHECKING:
    from tests.conftest import Databases

NODE = "etl-1"
Opener = Callable[..., SqlLog]
Spawn = Callable[..., Child]


def gtrid_of(log: SqlLog, number: int = 1) -> str:
    return make_gtrid(log.node, log.incarnation, number)


def decided(databases: Databases) -> set[str]:
    return {g for (g,) in databases.rows("one", "SELECT gtrid FROM txpool_decisions WHERE branches IS NOT NULL")}


def fences(databases: Databases) -> dict[str, int]:
    return dict(databases.rows("one", "SELECT name, fenced FROM txpool_incarnations"))


def await_lease(databases: Databases, incarnation: str) -> None:
    """Returns once the server has freed an incarnation's lease: it is taken, and let go again."""
    with psycopg.connect(databases.dsn("one")) as connection:
        connection.execute("SET lock_timeout = '20s'")
        connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", [key_of(incarnation)])


def await_blocked(databases: Databases, sessions: int = 1) -> None:
    """Returns once so many sessions wait for a lock, which no event tells."""
    with psycopg.connect(databases.dsn("one"), autocommit=True) as connection:
        for _ in range(1000):
            query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            if len(connection.execute(query).fetchall()) >= sessions:
                return
            time.sleep(0.01)
    raise AssertionError(f"fewer than {sessions} sessions wait for a lock")


def cut_lease(databases: Databases, node: str = NODE) -> None:
    found = databases.rows(
        "one",
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s",
        [f"txpool lease {node}"],
    )
    assert found == [(True,)]
