"""Sessions that are killed while they are idle: at most one user meets one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import psycopg
import pytest

import txpool
from tests.conftest import Databases
from tests.integration.pool.sessions import kill, sessions
from txpool.datasource import DataSource


@pytest.mark.parametrize("enlisted", [True, False])
def test_one_user_at_most_meets_a_session_that_was_just_killed(
    pooled: Callable[..., DataSource], databases: Databases, *, enlisted: bool
) -> None:
    """Nobody asks whether a connection is alive that was just used. Once one was lost, all are asked."""
    datasource = pooled(pool_check_bypass="1h")
    databases.execute("one", "create table killed (n int)")
    held = [datasource.connect() for _ in range(3)]
    for connection in held:
        connection.execute("select 1")
        connection.commit()
        connection.close()
    kill(databases, *sessions(databases))
    ended: list[object] = []
    for number in range(3):
        try:
            with txpool.transaction() if enlisted else nullcontext(), datasource.connect() as connection:
                connection.execute("insert into killed values (%s)", [number])
        except psycopg.errors.AdminShutdown:
            ended.append("lost")
        else:
            ended.append("done")
    assert ended == ["lost", "done", "done"]
    assert databases.rows("one", "select n from killed order by n") == [(1,), (2,)]
