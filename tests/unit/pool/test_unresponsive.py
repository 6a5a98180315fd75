"""Connections on which the server does not answer any more: each look has its time, and no place is lost."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.models.pool import PoolDatabase, Raw, pool_of, use
from txpool.errors import PoolTimeout
from txpool.pool import Pool, Pooled


class Timed(PoolDatabase):
    """Remembers the time that it was given."""

    def __init__(self, database: PoolDatabase) -> None:
        super().__init__(database.path)
        self.looks: list[float] = []
        self.connecting_time: list[float] = []

    def ping(self, raw: Raw, timeout: float | None = None) -> None:
        assert timeout is not None
        self.looks.append(timeout)
        super().ping(raw, timeout)

    def connect(self, timeout: float | None = None) -> Raw:
        assert timeout is not None
        self.connecting_time.append(timeout)
        return super().connect(timeout)


@pytest.fixture
def timed(database: PoolDatabase) -> Timed:
    return Timed(database)


def filled(pool: Pool[Raw], count: int) -> list[Pooled[Raw]]:
    held = [pool.take() for _ in range(count)]
    for pooled in held:
        pool.give_back(pooled)
    return held


def test_a_look_has_its_timeout_at_most(timed: Timed) -> None:
    with pool_of(timed, check_bypass=0, check_timeout=3, max_wait=3600) as pool:
        timed.silent = {pooled.raw for pooled in filled(pool, 4)[1:]}
        use(pool)
    assert timed.looks == [3, 3, 3, 3]


def test_looks_leave_half_of_the_wait_to_a_connect(timed: Timed) -> None:
    with pool_of(timed, max_size=50, check_bypass=0, check_timeout=1000, max_wait=400) as pool:
        timed.silent = {pooled.raw for pooled in filled(pool, 50)}
        use(pool)
    assert len(timed.looks) == 50
    assert 0 < timed.looks[-1] <= timed.looks[0] <= 100
    assert 200 < timed.connecting_time[-1] <= 400


def test_where_the_time_of_looks_is_up_nothing_more_is_dropped(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = 0.0
    monkeypatch.setattr("txpool.pool.waiting.monotonic", lambda: time.monotonic() + waited)
    with pool_of(timed, max_size=3, check_bypass=0) as pool:
        timed.silent = {pooled.raw for pooled in filled(pool, 3)}

        def waits(raw: Raw, timeout: float | None = None) -> None:
            nonlocal waited
            waited += 2000
            raise TimeoutError

        timed.ping = waits  # type: ignore[method-assign]
        pool.give_back(pool.take(timeout=3000))
        assert pool.statistics().check_failures == 1
        assert pool.statistics().idle == 3


def test_who_does_not_wait_drops_nothing_that_lives(timed: Timed) -> None:
    with pool_of(timed, check_bypass=0) as pool:
        use(pool)
        pool.give_back(pool.take(timeout=0))
        assert timed.looks == [0.25]
        assert timed.connects == 1


def test_no_time_left_is_said_with_what_was_dropped(timed: Timed) -> None:
    with pool_of(timed, max_size=2, check_bypass=0) as pool:
        timed.silent = {pooled.raw for pooled in filled(pool, 2)}
        with pytest.raises(PoolTimeout, match=r"within 0 s (.|\n)*1 idle connection did not answer in time: dropped"):
            pool.take(timeout=0)
        statistics = pool.statistics()
        assert (statistics.timeouts, statistics.check_failures, statistics.size) == (1, 1, 1)
        timed.silent.clear()
        filled(pool, 2)
        assert timed.most_live == 2


def test_who_waits_has_the_place_of_one_that_was_dropped(timed: Timed) -> None:
    """Two are idle, and the one that hangs goes: its place is free while the other is in use."""
    with pool_of(timed, max_size=2, check_bypass=0) as pool, ThreadPoolExecutor(1) as threads:
        _, last = filled(pool, 2)
        timed.silent = {last.raw}
        first = pool.take()
        second = threads.submit(pool.take).result(60)
        assert second.raw is not last.raw
        assert pool.statistics().size == 2
        pool.give_back(first)
        pool.give_back(second)


def test_a_reset_has_the_timeout_of_a_look(database: PoolDatabase) -> None:
    given: list[float | None] = []

    class Resetting(PoolDatabase):
        def reset(self, raw: Raw, timeout: float | None = None) -> None:
            given.append(timeout)
            raise TimeoutError

    with pool_of(Resetting(database.path), max_size=1, check_timeout=7) as pool:
        pooled = pool.take()
        pooled.dirty = True
        pool.give_back(pooled)
        assert pool.statistics().reset_failures == 1
        use(pool)
    assert given == [7]


def test_a_crowd_loses_no_place_to_those_that_hang(database: PoolDatabase) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with pool_of(database, max_size=4, max_wait=20, check_bypass=0) as pool, ThreadPoolExecutor(8) as threads:

        def work(_: int) -> None:
            pooled = pool.take()
            assert pooled.raw not in database.silent
            pooled.raw.execute("select 1")
            if dice.random() < 0.3:
                database.silent.add(pooled.raw)
            pool.give_back(pooled)

        list(threads.map(work, range(400)))
        database.silent.clear()
        filled(pool, 4)
        assert database.most_live <= 4
        assert pool.statistics().check_failures
