"""What is taken and given back: the last one first, once, to its own pool, and clean."""

from __future__ import annotations

import gc
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.models.pool import PoolDatabase, Raw, pool_of, use, waiting
from tests.support.waiting import until
from txpool.errors import ProgrammingError
from txpool.pool import PoolListener


def test_last_in_first_out(database: PoolDatabase) -> None:
    with pool_of(database) as pool:
        first, second = pool.take(), pool.take()
        pool.give_back(first)
        pool.give_back(second)
        assert pool.take() is second
        assert pool.take() is first
        pool.give_back(first)
        pool.give_back(second)


def test_connects_only_when_needed(database: PoolDatabase) -> None:
    with pool_of(database) as pool:
        assert database.connects == 0
        for _ in range(10):
            use(pool)
        assert database.connects == 1


def test_putconn_wrong_pool(database: PoolDatabase) -> None:
    with pool_of(database) as pool, pool_of(database) as other:
        pooled = pool.take()
        with pytest.raises(ProgrammingError, match="not from this pool"):
            other.give_back(pooled)
        with pytest.raises(ProgrammingError, match="not from this pool"):
            other.discard(pooled)
        pool.give_back(pooled)


def test_given_back_twice(database: PoolDatabase) -> None:
    with pool_of(database) as pool:
        pooled = pool.take()
        pool.give_back(pooled)
        with pytest.raises(ProgrammingError, match="already"):
            pool.give_back(pooled)
        with pytest.raises(ProgrammingError, match="already"):
            pool.discard(pooled)
        assert pool.take() is pooled
        assert pool.take() is not pooled
        assert pool.statistics().taken == 2


def test_dropped_connection_frees_its_place(database: PoolDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever forgets a connection does not make the pool smaller."""
    with pool_of(database, max_size=1, max_wait=20) as pool:
        pool.take()
        use(pool)
        assert "dropped without being closed" in caplog.text
        assert pool.statistics().lost == 1
        assert database.most_live == 1


def test_dropped_connection_that_took_the_place_of_a_dead_one(
    database: PoolDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a log record nor a listener that keeps the error of the check keeps the connection."""
    kept: list[BaseException] = []

    class Keeping(PoolListener):
        def check_failed(self, pool: str, raw: object, error: BaseException) -> None:
            kept.append(error)

    caplog.set_level(logging.DEBUG)
    gc.disable()
    try:
        with pool_of(database, max_size=1, max_wait=20, check_bypass=0, listeners=[Keeping()]) as pool:
            use(pool)
            database.kill(*pool.state.idle)
            pool.take()
            until(lambda: not pool.statistics().size)
            assert len(kept) == 1
            assert "was found dead" in caplog.text
    finally:
        gc.enable()


def test_intrans_rollback(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1) as pool:
        pooled = pool.take()
        pooled.raw.execute("begin")
        pooled.raw.execute("insert into t values (1)")
        pool.give_back(pooled)
        assert pool.take() is pooled
        assert pooled.raw.execute("select count(*) from t").fetchone() == (0,)
        pool.give_back(pooled)
        assert database.resets == 1


def test_clean_is_not_reset(database: PoolDatabase) -> None:
    with pool_of(database) as pool:
        use(pool)
        assert database.resets == 0


def test_reset(database: PoolDatabase) -> None:
    """Session attributes that were changed are restored, once."""
    with pool_of(database, max_size=1) as pool:
        pooled = pool.take()
        pooled.raw.execute("pragma cache_size = -64")
        pooled.dirty = True
        pool.give_back(pooled)
        use(pool)
        assert database.resets == 1
        assert pooled.raw.execute("pragma cache_size").fetchone() == (-2000,)


def test_reset_badstate(database: PoolDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """A reset that leaves a transaction open has not cleaned anything."""
    database.reset_cleans = False
    with pool_of(database, max_size=1) as pool:
        pooled = pool.take()
        pooled.raw.execute("begin")
        pool.give_back(pooled)
        assert pool.statistics().reset_failures == 1
        assert pool.take(timeout=0).raw is not pooled.raw
        assert database.most_live == 1
    assert "not clean after the reset" in caplog.text


def test_reset_broken(database: PoolDatabase, caplog: pytest.LogCaptureFixture) -> None:
    with pool_of(database, max_size=1) as pool:
        pooled = pool.take()
        database.kill(pooled)
        pooled.dirty = True
        pool.give_back(pooled)
        pool.give_back(pool.take(timeout=0))
        assert database.connects == 2
    assert "could not be reset: ProgrammingError" in caplog.text


def test_interrupt_while_resetting(database: PoolDatabase) -> None:
    class Interrupted(PoolDatabase):
        def reset(self, raw: Raw, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    interrupted = Interrupted(database.path)
    with pool_of(interrupted, max_size=1) as pool:
        pooled = pool.take()
        pooled.raw.execute("begin")
        with pytest.raises(KeyboardInterrupt):
            pool.give_back(pooled)
        pool.give_back(pool.take(timeout=0))
    assert not interrupted.live


def test_broken_is_replaced_for_a_waiter(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        pooled = pool.take()
        other = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.discard(pooled)
        assert other.result(60).raw is not pooled.raw
        pool.give_back(other.result())
        assert database.most_live == 1
