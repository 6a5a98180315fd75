"""pool.keepalive: idle connections are asked whether they are alive, again and again, by the pool's own thread."""

from __future__ import annotations

import threading
import time

import pytest

from tests.models.pool import PoolDatabase, Raw, pool_of, use
from tests.support.waiting import until
from txpool.pool.pooled import JITTER


def test_an_idle_connection_is_asked_again_and_again(database: PoolDatabase) -> None:
    with pool_of(database, keepalive=0.05) as pool:
        use(pool)
        until(lambda: database.pings >= 3)
        assert pool.statistics().size == 1
        assert database.connects == 1


def test_none_asks_nobody(database: PoolDatabase) -> None:
    with pool_of(database) as pool:
        use(pool)
        assert pool._maintenance._next_due(pool, time.monotonic()) > time.monotonic() + 500
        assert not database.pings


def test_one_that_was_used_meanwhile_has_its_time_again(database: PoolDatabase) -> None:
    with pool_of(database, keepalive=1000) as pool:
        use(pool)
        (pooled,) = pool.state.idle
        pooled.returned_at -= 1000 * (1 + JITTER)
        assert pooled.check_due(1000) <= time.monotonic()
        pooled.returned_at = time.monotonic()
        assert pooled.check_due(1000) >= time.monotonic() + 1000 * (1 - JITTER) - 1
        assert not pool._maintenance._check_one(pool)


def test_a_dead_one_is_closed_and_replaced_up_to_min_size(database: PoolDatabase) -> None:
    with pool_of(database, min_size=1, max_size=3, keepalive=0.1) as pool:
        pool.wait_ready()
        taken = [pool.take() for _ in range(2)]
        for pooled in taken:
            pool.give_back(pooled)
        database.kill(*taken)
        until(lambda: pool.statistics().check_failures == 2)
        until(lambda: pool.statistics().idle == 1)
        assert pool.statistics().size == 1


def test_one_that_does_not_answer_is_closed(database: PoolDatabase) -> None:
    with pool_of(database, keepalive=0.05) as pool:
        use(pool)
        database.silent |= database.live
        until(lambda: not pool.statistics().size)
        assert pool.statistics().check_failures == 1
        database.silent.clear()


class Gated(PoolDatabase):
    """Its answers wait for `answer`."""

    answer: threading.Event
    asked: threading.Event

    def ping(self, raw: Raw, timeout: float | None = None) -> None:
        self.asked.set()
        self.answer.wait(60)
        super().ping(raw, timeout)


@pytest.fixture
def gated(database: PoolDatabase) -> Gated:
    database.__class__ = Gated
    assert isinstance(database, Gated)
    database.answer, database.asked = threading.Event(), threading.Event()
    return database


def test_it_holds_no_lock_and_takes_one_at_a_time(gated: Gated) -> None:
    with pool_of(gated, max_size=3, keepalive=0.05, check_bypass=60) as pool:
        taken = [pool.take() for _ in range(3)]
        for pooled in taken:
            pool.give_back(pooled)
        assert gated.asked.wait(60)
        assert pool.statistics().idle == 2, "one is asked, the others can be taken"
        for _ in range(10):
            use(pool)
        gated.answer.set()
        until(lambda: pool.statistics().idle == 3)
        assert gated.connects == 3


def test_who_waits_gets_the_one_that_was_asked(gated: Gated) -> None:
    with pool_of(gated, max_size=1, keepalive=0.05, check_bypass=60, max_wait=20) as pool:
        use(pool)
        assert gated.asked.wait(60)
        threading.Timer(0.1, gated.answer.set).start()
        use(pool)
        assert gated.connects == 1


def test_it_keeps_no_quiet_pool_from_shrinking(database: PoolDatabase) -> None:
    """The most recently used one stays the next to be taken, whatever was asked since."""
    with pool_of(database, max_size=2, check_bypass=60) as pool:
        first, last = pool.take(), pool.take()
        pool.give_back(first)
        time.sleep(0.01)
        pool.give_back(last)
        for pooled in (first, last, last, first):
            pool.state.take_idle(pooled)
            pool.checker.check_idle(pooled)
            assert list(pool.state.idle) == [first, last]
        assert database.pings == 4


def test_what_is_drained_while_it_is_asked_is_closed(gated: Gated) -> None:
    with pool_of(gated, keepalive=0.05) as pool:
        use(pool)
        assert gated.asked.wait(60)
        pool.drain()
        gated.answer.set()
        until(lambda: not pool.statistics().size)
