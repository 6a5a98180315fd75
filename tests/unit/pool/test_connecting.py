"""Connecting, failing to, and what has died since: the reason is told, and the place is free again."""

from __future__ import annotations

import sqlite3
import time
from asyncio import CancelledError
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.models.pool import PoolDatabase, Raw, pool_of, use, waiting
from tests.support.waiting import until
from txpool.pool import Pooled


def test_concurrent_filling(database: PoolDatabase) -> None:
    """Connects do not wait for one another: no lock is held over them."""
    database.gate.clear()
    with pool_of(database, max_size=5) as pool, ThreadPoolExecutor(5) as threads:
        results = [threads.submit(pool.take) for _ in range(5)]
        for _ in range(5):
            assert database.connecting.acquire(timeout=60)
        database.gate.set()
        for result in results:
            pool.give_back(result.result(60))
        assert len(database.live) == 5


def test_giving_back_while_another_connects(database: PoolDatabase) -> None:
    with pool_of(database, max_size=2) as pool, ThreadPoolExecutor(1) as threads:
        pooled = pool.take()
        database.gate.clear()
        slow = threads.submit(pool.take)
        until(lambda: database.connects == 2)
        pool.give_back(pooled)
        assert pool.take(timeout=0) is pooled
        pool.give_back(pooled)
        database.gate.set()
        pool.give_back(slow.result(60))


def test_interrupt_while_connecting(database: PoolDatabase) -> None:
    """The place of a connect that was interrupted is free again."""
    with pool_of(database, max_size=1) as pool:
        database.down, database.fault = "^C", KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            pool.take()
        database.down = None
        pool.give_back(pool.take(timeout=0))


def test_connect_error_is_the_drivers(database: PoolDatabase) -> None:
    """A wrong password says so, and at once."""
    database.down = "wrong password"
    with pool_of(database, max_wait=3600) as pool:
        for _ in range(30):
            with pytest.raises(sqlite3.OperationalError, match="wrong password"):
                pool.take()
        assert pool.statistics().connect_failures == 30
        assert pool.statistics().size == 0


def test_connect_error_reaches_everybody_who_waits(database: PoolDatabase) -> None:
    """The place of a connect that failed goes to the next, who learns the reason as well."""
    database.gate.clear()
    with pool_of(database, max_size=1, max_wait=3600) as pool, ThreadPoolExecutor(5) as threads:
        results = [threads.submit(pool.take) for _ in range(5)]
        until(lambda: waiting(pool) == 4)
        database.down = "no such role"
        database.gate.set()
        assert [str(result.exception(20)) for result in results] == ["no such role"] * 5


def test_reconnect(database: PoolDatabase) -> None:
    """A connection that died while idle is replaced before anybody sees it."""
    with pool_of(database, max_size=1, check_bypass=0) as pool:
        pooled = pool.take()
        pool.give_back(pooled)
        database.kill(pooled)
        again = pool.take()
        assert again.raw.execute("select 1").fetchone() == (1,)
        pool.give_back(again)
        assert pool.statistics().check_failures == 1
        assert pool.statistics().destroyed == 1
        assert database.most_live == 1


def test_reconnect_failure(database: PoolDatabase) -> None:
    """While the database is away everybody hears it; when it is back all is as before."""
    with pool_of(database, max_size=2, check_bypass=0) as pool:
        pair = [pool.take(), pool.take()]
        for pooled in pair:
            pool.give_back(pooled)
        database.kill(*pair)
        database.down = "the database is away"
        for _ in range(5):
            with pytest.raises(sqlite3.OperationalError, match="away"):
                pool.take()
        database.down = None
        use(pool)
        assert pool.statistics().failure is None


def test_check_bypass(database: PoolDatabase) -> None:
    """One that was used a moment ago is not asked whether it is alive."""
    with pool_of(database, check_bypass=3600) as pool:
        use(pool)
        use(pool)
        assert database.pings == 0
    with pool_of(database, check_bypass=0) as pool:
        use(pool)
        use(pool)
        assert database.pings == 1


def test_check_backoff(database: PoolDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """The background tries again, less and less often, and says so."""
    database.down = "starting up"
    with pool_of(database, min_size=2) as pool:
        until(lambda: database.connects >= 3)
        assert pool.statistics().size <= 1
        database.down = None
        pool.wait_ready(20)
        assert pool.statistics().idle == 2
    delays = [record.args[3] for record in caplog.records if "next attempt" in record.getMessage()]  # type: ignore[index]
    assert delays[:3] == [0.1, 0.2, 0.4]


def test_reconnect_of_a_user_ends_the_backoff(database: PoolDatabase) -> None:
    database.down = "starting up"
    with pool_of(database, min_size=2) as pool:
        until(lambda: pool.statistics().connect_failures)
        pool._maintenance._backoff, pool._maintenance._retry_at = 3600.0, time.monotonic() + 3600
        database.down = None
        use(pool)
        pool.wait_ready(20)


@pytest.mark.parametrize("fault", [SystemExit, KeyboardInterrupt, CancelledError])
def test_nothing_that_a_connect_raises_ends_the_background(database: PoolDatabase, fault: type[BaseException]) -> None:
    """A function that supplies credentials is the user's, and may raise anything."""
    database.down, database.fault = "hunter2", fault
    with pool_of(database, min_size=1, max_size=1, max_wait=20) as pool:
        until(lambda: pool.statistics().connect_failures >= 2)
        assert pool.statistics().failure == f"OperationalError: connecting ended with {fault.__name__}"
        assert pool.statistics().connect_failures < 10, "it backs off"
        database.down = None
        pool.wait_ready(20)
        dropped = pool.take()
        del dropped
        use(pool)
        assert pool.statistics().lost == 1


def test_failed_background_connect_leaves_room(database: PoolDatabase) -> None:
    """While the background connects in the only place, a user waits for it, and then sees the reason himself."""
    database.gate.clear()
    database.down = "wrong password"
    with pool_of(database, min_size=1, max_size=1, max_wait=3600) as pool, ThreadPoolExecutor(1) as threads:
        assert database.connecting.acquire(timeout=60)
        user = threads.submit(pool.take)
        until(lambda: waiting(pool))
        database.gate.set()
        assert str(user.exception(20)) == "wrong password"


def test_no_rush_on_a_server_that_is_away(database: PoolDatabase) -> None:
    """Of thirty who borrow, as many try as there are places; when the last has failed, all hear why, at once."""
    database.gate.clear()
    with pool_of(database, max_size=4, max_wait=3600) as pool, ThreadPoolExecutor(30) as threads:
        results = [threads.submit(pool.take) for _ in range(30)]
        until(lambda: waiting(pool) == 26 and database.connects == 4)
        database.down = "the server is away"
        database.gate.set()
        errors = [result.exception(20) for result in results]
        assert {str(error) for error in errors} == {"the server is away"}
        assert len({id(error) for error in errors}) == 30, "each has an error of its own"
        assert database.connects == pool.statistics().connect_failures == 4
        assert (pool.statistics().size, waiting(pool)) == (0, 0)
        database.down = None
        use(pool)


def test_who_waits_is_served_once_another_connect_succeeds(database: PoolDatabase) -> None:
    """The one that fails first may be the exception: a server that is full, for a moment."""
    database.gate.clear()
    with pool_of(database, max_size=2, max_wait=20) as pool, ThreadPoolExecutor(6) as threads:
        connect, failed = database.connect, []

        def one_fails(timeout: float | None = None) -> Raw:
            raw = connect(timeout)
            if not failed:
                failed.append(True)
                database.close(raw)
                raise sqlite3.OperationalError("too many clients")
            return raw

        database.connect = one_fails  # type: ignore[method-assign]
        results = [threads.submit(use, pool) for _ in range(6)]
        until(lambda: waiting(pool) == 4 and database.connects == 2)
        database.gate.set()
        errors = [error for result in results if (error := result.exception(20)) is not None]
        assert [str(error) for error in errors] == ["too many clients"]
        assert database.connects <= 4


def test_who_waits_has_the_place_of_a_failed_connect_while_others_are_open(database: PoolDatabase) -> None:
    with pool_of(database, max_size=2, max_wait=20) as pool, ThreadPoolExecutor(2) as threads:
        held = pool.take()
        database.gate.clear()
        results = [threads.submit(use, pool) for _ in range(2)]
        until(lambda: waiting(pool) == 1)
        database.down = "for a moment"
        database.gate.set()
        assert [str(result.exception(20)) for result in results] == ["for a moment"] * 2
        assert database.connects == 3, "both have tried"
        pool.give_back(held)


def test_an_interrupt_just_behind_the_connect_closes_what_was_opened(database: PoolDatabase) -> None:
    class Interrupted(Pooled[Raw]):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "raw":
                raise KeyboardInterrupt

    with pool_of(database) as pool:
        slot = Interrupted(pool.state._connector, pool.state.reference, 60, pool.state.maintenance_queue.put)
        pool.state.members[id(slot)] = slot.member
        with pytest.raises(KeyboardInterrupt):
            pool.opener.open(slot, 5)
        assert not database.live
        assert pool.statistics().size == 0
