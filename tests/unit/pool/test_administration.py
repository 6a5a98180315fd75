"""Suspension, flush, a pool that is off, connections under other credentials, and the numbers that tell of them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import txpool
from tests.models.pool import PoolDatabase, pool_of, use, waiting
from tests.support.forking import in_child
from tests.support.waiting import until
from txpool.errors import ConfigurationError, PoolClosed, PoolTimeout
from txpool.pool import PoolStatistics


def test_suspended_who_borrows_waits_and_is_served_in_order(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1, max_wait=20) as pool, ThreadPoolExecutor(3) as threads:
        use(pool)
        pool.suspend()
        assert pool.statistics().suspended
        assert "suspended" in repr(pool)
        order: list[int] = []

        def take(number: int) -> None:
            pooled = pool.take()
            order.append(number)
            pool.give_back(pooled)

        futures = []
        for number in range(3):
            futures.append(threads.submit(take, number))
            until(lambda number=number: waiting(pool) == number + 1)  # type: ignore[misc]
        assert pool.statistics().idle == 1, "it is there, and nobody gets it"
        pool.resume()
        for future in futures:
            future.result(60)
        assert order == [0, 1, 2]
        assert not pool.statistics().suspended
        use(pool)


def test_suspended_for_longer_than_the_wait(database: PoolDatabase) -> None:
    with pool_of(database, max_wait=0.01) as pool:
        use(pool)
        pool.suspend()
        with pytest.raises(PoolTimeout, match=r"the pool is suspended, and hands out no connection before resume_pool"):
            pool.take()
        pool.suspend()
        pool.resume()
        pool.resume()
        use(pool)


def test_suspended_what_is_taken_goes_on_and_comes_back(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1, max_wait=20) as pool, ThreadPoolExecutor(1) as threads:
        pooled = pool.take()
        pool.suspend()
        waiter = threads.submit(pool.take)
        until(lambda: waiting(pool) == 1)
        pooled.raw.execute("select 1")
        pool.give_back(pooled)
        time.sleep(0.05)
        assert waiting(pool) == 1, "even one that came back is not handed on"
        assert not waiter.done()
        pool.resume()
        pool.give_back(waiter.result(60))


def test_suspended_under_load_nobody_holds_one(database: PoolDatabase) -> None:
    with pool_of(database, max_size=3, max_wait=20) as pool, ThreadPoolExecutor(6) as threads:
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                use(pool)

        futures = [threads.submit(work) for _ in range(6)]
        for _ in range(20):
            until(lambda: pool.statistics().takes > 0)
            pool.suspend()
            until(lambda: waiting(pool) == 6)
            assert not pool.statistics().taken
            takes = pool.statistics().takes
            time.sleep(0.002)
            assert pool.statistics().takes == takes
            pool.resume()
            until(lambda takes=takes: pool.statistics().takes > takes)  # type: ignore[misc]
        stop.set()
        for future in futures:
            future.result(60)


def test_suspended_and_closed_says_closed(database: PoolDatabase) -> None:
    with pool_of(database, max_wait=20) as pool, ThreadPoolExecutor(1) as threads:
        pool.suspend()
        waiter = threads.submit(pool.take)
        until(lambda: waiting(pool) == 1)
        pool.close()
        with pytest.raises(PoolClosed):
            waiter.result(60)


def test_suspended_stays_so_in_a_forked_child(database: PoolDatabase) -> None:
    with pool_of(database, max_wait=0.01) as pool:
        pool.suspend()

        def child() -> None:
            assert pool.statistics().suspended
            with pytest.raises(PoolTimeout):
                pool.take()
            pool.resume()
            use(pool)
            pool.close()

        in_child(child)
        assert pool.statistics().suspended


def test_close_idle_leaves_what_is_taken(database: PoolDatabase) -> None:
    with pool_of(database, max_size=2) as pool:
        held = pool.take()
        use(pool)
        raw = held.raw
        pool.close_idle()
        assert pool.statistics().size == 1
        pool.give_back(held)
        again = pool.take()
        assert again.raw is raw
        pool.give_back(again)


# -- a pool that is off ---------------------------------------------------------------------------------------------


def test_off_each_take_opens_one_and_its_give_back_closes_it(database: PoolDatabase) -> None:
    with pool_of(database, enabled=False) as pool:
        for number in range(3):
            pooled = pool.take()
            assert database.connects == number + 1
            pool.give_back(pooled)
            assert not database.live
        numbers = pool.statistics()
        assert not numbers.enabled
        assert (numbers.takes, numbers.created, numbers.destroyed, numbers.size) == (3, 3, 3, 0)
        assert not database.pings
        assert not database.resets


def test_off_max_size_max_wait_and_leaks_hold(database: PoolDatabase, caplog: pytest.LogCaptureFixture) -> None:
    options = {"enabled": False, "max_size": 1, "max_wait": 0.02, "leak_threshold": 0.05}
    with pool_of(database, **options) as pool, ThreadPoolExecutor(1) as threads:
        held = pool.take()
        with pytest.raises(PoolTimeout, match="1 of 1 are in use"):
            pool.take()
        until(lambda: pool.statistics().leaks == 1)
        waiter = threads.submit(pool.take, 20)
        until(lambda: waiting(pool) == 1)
        pool.give_back(held)
        pool.give_back(waiter.result(60))
        assert database.connects == 2
        assert database.most_live == 1


def test_off_and_min_size_do_not_fit(database: PoolDatabase) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"min-size 1 does not fit pool\.enabled = false"),
        pool_of(database, enabled=False, min_size=1),
    ):
        pass
    with pool_of(database, enabled=False) as pool, pytest.raises(ConfigurationError, match="does not fit"):
        pool.resize(1, 2)


def test_off_under_load_never_more_than_max_size(database: PoolDatabase) -> None:
    with pool_of(database, enabled=False, max_size=2, max_wait=20) as pool, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: use(pool), range(200)))
        assert database.connects == 200
        assert database.most_live <= 2


# -- other credentials ----------------------------------------------------------------------------------------------


def test_separate_is_another_connector_and_is_closed_when_it_comes_back(database: PoolDatabase, tmp_path: Path) -> None:
    other = PoolDatabase(tmp_path / "other.db")
    with pool_of(database, max_size=1, max_wait=0.02) as pool:
        use(pool)
        pooled = pool.take_separate(other)
        assert pooled.separate
        assert other.live
        assert not database.live, "its slot was the only one"
        with pytest.raises(PoolTimeout):
            pool.take()
        with pytest.raises(PoolTimeout):
            pool.take_separate(other)
        pool.give_back(pooled)
        assert not other.live
        use(pool)
        assert other.connects == 1


def test_separate_takes_a_free_slot_before_an_idle_connection(database: PoolDatabase, tmp_path: Path) -> None:
    other = PoolDatabase(tmp_path / "other.db")
    with pool_of(database, max_size=2) as pool:
        use(pool)
        pooled = pool.take_separate(other)
        assert pool.statistics().idle == 1
        pool.give_back(pooled)
        assert len(database.live) == 1


def test_separate_wrong_password_is_its_own_affair(database: PoolDatabase, tmp_path: Path) -> None:
    other = PoolDatabase(tmp_path / "other.db")
    other.down = "wrong password"
    with pool_of(database, max_size=1, max_wait=0.05) as pool:
        with pytest.raises(sqlite3.OperationalError, match="wrong password"):
            pool.take_separate(other)
        assert pool.statistics().failure is None
        assert pool.statistics().size == 0
        use(pool)


def test_who_was_kept_from_trying_is_served_once_another_users_connect_succeeds(
    database: PoolDatabase, tmp_path: Path
) -> None:
    other = PoolDatabase(tmp_path / "other.db")
    database.gate.clear()
    other.gate.clear()
    with pool_of(database, max_size=2, max_wait=20) as pool, ThreadPoolExecutor(3) as threads:
        separate = threads.submit(pool.take_separate, other)
        until(lambda: other.connects == 1)
        fails = threads.submit(pool.take)
        until(lambda: database.connects == 1)
        waits = threads.submit(use, pool)
        until(lambda: waiting(pool) == 1)
        database.down = "for a moment"
        database.gate.set()
        assert str(fails.exception(20)) == "for a moment"
        assert waiting(pool) == 1, "the other connect is still under way"
        database.down = None
        other.gate.set()
        held = separate.result(60)
        assert waits.exception(20) is None, "there was a free slot all the time"
        pool.give_back(held)


# -- numbers --------------------------------------------------------------------------------------------------------


def test_every_number_is_documented_and_none_can_be_changed(database: PoolDatabase) -> None:
    assert txpool.PoolStatistics is PoolStatistics
    (definition,) = ast.parse(inspect.getsource(PoolStatistics)).body
    assert isinstance(definition, ast.ClassDef)
    documented = {
        before.target.id
        for before, after in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and str(after.value.value).strip()
    }
    assert documented == {field.name for field in dataclasses.fields(PoolStatistics)}
    with pool_of(database) as pool:
        numbers = pool.statistics()
        with pytest.raises(dataclasses.FrozenInstanceError):
            numbers.size = 5  # type: ignore[misc]
        assert not hasattr(numbers, "__dict__")
        assert dataclasses.asdict(numbers)["max_size"] == 10
