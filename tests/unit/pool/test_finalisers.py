"""A finaliser runs anywhere, and so inside the pool's own lock: what it gives back then is back, and nothing stands."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any

import pytest

from tests.models.pool import PoolDatabase, Raw, pool_of, use, waiting
from tests.support.waiting import until
from txpool.errors import InterfaceError
from txpool.metrics import HISTOGRAMS, instruments
from txpool.metrics.catalogue import USE_SECONDS
from txpool.pool import Pool, Pooled


class Abandoned:
    """A cycle, as the frame of a traceback makes one: it ends when the collector comes."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.end = end
        self.itself = self

    def __del__(self) -> None:
        self.end()


def finalise_inside(lock: Any, *ends: Callable[[], object]) -> None:
    """Have the collector come while its thread holds the lock; in a thread that may stand for ever."""

    def finalise() -> None:
        for end in ends:
            Abandoned(end)
        with lock:
            gc.collect()

    finaliser = threading.Thread(target=finalise, daemon=True)
    finaliser.start()
    finaliser.join(60)
    assert not finaliser.is_alive(), "it waits for the lock that its own thread holds"


def finalise_inside_the_lock(pool: Pool[Raw], *ends: Callable[[], object]) -> None:
    finalise_inside(pool.state.lock, *ends)
    pool.state.run_deferred()


@pytest.fixture(autouse=True)
def _collect_on_request_only() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_it_gives_back(database: PoolDatabase) -> None:
    with pool_of(database, max_size=2) as pool:
        first, second = pool.take(), pool.take()
        finalise_inside_the_lock(pool, lambda: pool.give_back(first), lambda: pool.give_back(second))
        assert (pool.statistics().idle, pool.statistics().taken) == (2, 0)
        assert database.connects == 2


def test_it_gives_back_to_one_who_waits(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        held = pool.take()
        waiter = threads.submit(pool.take, 20)
        until(lambda: waiting(pool))
        finalise_inside_the_lock(pool, lambda: pool.give_back(held))
        assert waiter.result(60) is held
        pool.give_back(held)


def test_it_gives_back_what_is_not_clean(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1) as pool:
        held = pool.take()
        held.raw.execute("begin")
        within: list[bool] = []
        ping = database.reset

        def reset(raw: Raw, timeout: float | None = None) -> None:
            within.append(pool.state.lock._is_owned())  # type: ignore[attr-defined]
            ping(raw)

        database.reset = reset  # type: ignore[method-assign]
        finalise_inside_the_lock(pool, lambda: pool.give_back(held))
        assert within == [False]  # never held over I/O
        assert not held.raw.in_transaction
        assert pool.statistics().idle == 1


def test_it_discards(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1) as pool:
        held = pool.take()
        finalise_inside_the_lock(pool, lambda: pool.discard(held))
        assert not database.live
        use(pool)
        assert pool.statistics().destroyed == 1


def test_it_gives_back_to_a_pool_that_is_closed(database: PoolDatabase) -> None:
    with pool_of(database, max_size=2) as pool:
        held = pool.take()
        pool.close()
        finalise_inside_the_lock(pool, lambda: pool.give_back(held))
        assert not database.live
        assert pool.statistics().size == 0


def test_it_cannot_wait_for_a_connection(database: PoolDatabase) -> None:
    heard: list[BaseException] = []
    with pool_of(database, max_size=1) as pool:
        held = pool.take()

        def take() -> None:
            try:
                pool.take()
            except InterfaceError as error:
                heard.append(error)

        finalise_inside_the_lock(pool, take)
        assert "a finaliser may give" in str(heard[0])
        pool.give_back(held)
        use(pool)


def test_nothing_is_lost_wherever_it_strikes(database: PoolDatabase) -> None:
    """The collector comes as often as it can, in eight threads that crowd around two connections."""
    with pool_of(database, max_size=2, max_wait=20) as pool:
        kept: list[Pooled[Raw]] = []  # or a cycle has the connection in it: another test's

        def work() -> None:
            for _ in range(150):
                pooled: Pooled[Raw] = pool.take()
                kept.append(pooled)
                Abandoned(lambda held=pooled: pool.give_back(held))  # type: ignore[misc]

        before, deadline = gc.get_threshold(), monotonic() + 300
        gc.freeze()  # or each collection goes through what earlier tests have left
        gc.set_threshold(1)
        gc.enable()
        try:
            threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
            for thread in threads:
                thread.start()
            # What an early collection spared is in an older generation, and nothing collects that while all eight wait.
            while any(thread.is_alive() for thread in threads) and monotonic() < deadline:
                gc.collect()
                sleep(0.01)
            assert not any(thread.is_alive() for thread in threads)
        finally:
            gc.set_threshold(*before)
        gc.collect()
        numbers = pool.statistics()
        assert (numbers.takes, numbers.taken, numbers.lost) == (1200, 0, 0)
        assert len(database.live) == numbers.size <= database.most_live <= 2


class Keeper:
    """A cycle that holds the connection itself."""

    def __init__(self, pool: Pool[Raw]) -> None:
        self.pool = pool
        self.itself = self
        self.pooled: Any = None

    def __del__(self) -> None:
        self.pool.give_back(self.pooled)


@pytest.mark.parametrize("older", ["connection", "keeper"])
def test_a_cycle_with_the_connection_in_it(database: PoolDatabase, older: str) -> None:
    """The collector calls every finaliser of a cycle, the connection's own, too: nobody gets what that one ends."""
    with pool_of(database, max_size=1, max_wait=20) as pool:
        if older == "connection":
            use(pool)
        keeper = Keeper(pool)
        keeper.pooled = pool.take()
        first = keeper.pooled.raw
        del keeper
        gc.collect()
        for _ in range(3):
            pooled = pool.take()
            assert pooled.raw is not first
            pooled.raw.execute("select 1")
            pool.give_back(pooled)
            until(lambda: len(database.live) == 1)
        # It is lost, or the maintenance thread has found it given back and ended: which of the two comes first is open.
        assert (pool.statistics().size, pool.statistics().lost <= 1) == (1, True)


def test_it_strikes_inside_a_histogram(database: PoolDatabase) -> None:
    """Once somebody reads, giving back is observed under a lock of its own."""
    with pool_of(database) as pool:
        held = pool.take()
        armed, instruments.armed = instruments.armed, True
        finalise_inside(HISTOGRAMS[USE_SECONDS]._lock, lambda: pool.give_back(held))
        instruments.armed = armed
        assert pool.statistics().idle == 1


def test_what_a_finaliser_has_deferred_is_done_after_a_suspension(database: PoolDatabase) -> None:
    """And not within it, where the lock is held: it would be deferred again, for ever."""
    with pool_of(database) as pool:
        for step in (pool.suspend, pool.resume):
            pooled = pool.take(timeout=60)
            with pool.state.lock:
                pool.discard(pooled)
                assert database.live
            step()
            assert not database.live
            if step == pool.suspend:
                pool.resume()
