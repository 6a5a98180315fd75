"""How many connections there are, and for how long."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.models.pool import PoolDatabase, pool_of, waiting
from tests.support.waiting import until
from txpool.errors import ConfigurationError, PoolTimeout
from txpool.pool import Pool


def test_min_size_and_wait_ready(database: PoolDatabase) -> None:
    with pool_of(database, min_size=4) as pool:
        pool.wait_ready(20)
        assert pool.statistics().idle == 4
        assert database.connects == 4


def test_wait_ready_timeout(database: PoolDatabase) -> None:
    database.down = "wrong password"
    with pool_of(database, min_size=1) as pool:
        until(lambda: pool.statistics().connect_failures)
        with pytest.raises(PoolTimeout, match=r"1 connections were not open.*wrong password"):
            pool.wait_ready(0.01)


def test_refill_on_check(database: PoolDatabase) -> None:
    with pool_of(database, min_size=3) as pool:
        pool.wait_ready(20)
        dead, alive, _ = three = [pool.take() for _ in range(3)]
        for pooled in three:
            pool.give_back(pooled)
        database.kill(dead)
        pool.check()
        pool.wait_ready(20)
        assert pool.statistics().check_failures == 1
        assert alive in pool.state.idle
        assert dead not in pool.state.idle


def test_broken_is_replaced_in_the_background(database: PoolDatabase) -> None:
    with pool_of(database, min_size=1) as pool:
        pool.discard(pool.take())
        until(lambda: pool.statistics().idle == 1)


def test_grow_and_shrink(database: PoolDatabase) -> None:
    """Under load it grows to the maximum; unused it falls back to the minimum."""
    with pool_of(database, min_size=2, max_size=5, idle_timeout=0.05) as pool:
        five = [pool.take() for _ in range(5)]
        for pooled in five:
            pool.give_back(pooled)
        until(lambda: len(database.live) == 2)
        assert pool.statistics().idle == 2
        assert database.most_live == 5


def test_idle_timeout_off(database: PoolDatabase) -> None:
    with pool_of(database, idle_timeout=0, max_lifetime=0) as pool:
        pooled = pool.take()
        pool.give_back(pooled)
        assert pool.idle_timeout == pooled.expires == float("inf")
        assert pool._maintenance._maintain(pool) is None, "nothing will ever be due"


def test_max_lifetime(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1, max_lifetime=0.02) as pool:
        pooled = pool.take()
        time.sleep(0.03)
        pool.give_back(pooled)
        assert pooled.raw not in database.live
        idle = pool.take()
        pool.give_back(idle)
        until(lambda: idle.raw not in database.live)


def test_expired_is_not_handed_out(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1) as pool:
        pooled = pool.take()
        pool.give_back(pooled)
        pooled.expires = time.monotonic()
        assert pool.take().raw is not pooled.raw
        assert database.most_live == 1


def test_jitter(database: PoolDatabase) -> None:
    with pool_of(database, max_size=50, max_lifetime=1000) as pool:
        many = [pool.take() for _ in range(50)]
        now = time.monotonic()
        lifetimes = [pooled.expires - now for pooled in many]
        assert 960 < min(lifetimes) < max(lifetimes) <= 1000
        assert max(lifetimes) - min(lifetimes) > 5
        for pooled in many:
            pool.give_back(pooled)


def test_resize(database: PoolDatabase) -> None:
    with pool_of(database, max_size=2) as pool, ThreadPoolExecutor(1) as threads:
        held = [pool.take(), pool.take()]
        third = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.resize(0, 3)
        held.append(third.result(60))
        idle = held.pop()
        pool.give_back(idle)
        pool.resize(0, 1)
        assert idle.raw not in database.live, "too many, and idle"
        last, first = held
        pool.give_back(first)
        assert first.raw not in database.live, "too many, and given back"
        pool.give_back(last)
        assert database.live == {last.raw}
        pool.resize(2, 2)
        pool.wait_ready(20)
        assert len(database.live) == 2


def test_resize_below_waiters(database: PoolDatabase) -> None:
    """Who waits while the pool shrinks is served within the new size."""
    with pool_of(database, max_size=2) as pool, ThreadPoolExecutor(1) as threads:
        first, second = pool.take(), pool.take()
        third = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.resize(0, 1)
        pool.give_back(first)
        assert waiting(pool) == 1
        pool.give_back(second)
        assert third.result(60) is second
        pool.give_back(second)


@pytest.mark.parametrize(("min_size", "max_size"), [(-1, 1), (2, 1), (0, 0)])
def test_bad_size(database: PoolDatabase, min_size: int, max_size: int) -> None:
    with pytest.raises(ConfigurationError, match="orders"):
        Pool(database, name="orders", min_size=min_size, max_size=max_size)
    with pool_of(database) as pool, pytest.raises(ConfigurationError):
        pool.resize(min_size, max_size)


def test_drain(database: PoolDatabase) -> None:
    with pool_of(database, min_size=2, max_size=3) as pool:
        pool.wait_ready(20)
        held, idle = pool.take(), pool.take()
        pool.give_back(idle)
        pool.drain()
        assert idle.raw not in database.live
        assert held.raw in database.live
        pool.give_back(held)
        assert held.raw not in database.live
        pool.wait_ready(20)
        assert len(database.live) == 2
