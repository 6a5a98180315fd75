"""Waiting for a connection: who is served, in which order, and who leaves the queue."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.models.pool import PoolDatabase, Raw, pool_of, use, waiting
from tests.support.waiting import until
from txpool.errors import PoolTimeout
from txpool.pool import Pooled


def test_queue(database: PoolDatabase) -> None:
    """Those who wait are served in the order of asking."""
    served: list[int] = []
    with pool_of(database, max_size=1) as pool:
        held = pool.take()

        def work(number: int) -> None:
            pooled = pool.take()
            served.append(number)
            pool.give_back(pooled)

        with ThreadPoolExecutor(8) as threads:
            for number in range(8):
                threads.submit(work, number)
                until(lambda: waiting(pool) == number + 1)
            pool.give_back(held)
        assert served == list(range(8))
        assert database.connects == 1


def test_nobody_overtakes_a_waiter(database: PoolDatabase) -> None:
    """Who gives back and takes again at once queues behind the one who waits."""
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        held = pool.take()
        other = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.give_back(held)
        with pytest.raises(PoolTimeout):
            pool.take(timeout=0)
        pool.give_back(other.result())


def test_queue_timeout(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1, max_wait=0.01) as pool:
        held = pool.take()
        with pytest.raises(PoolTimeout):
            pool.take()
        pool.give_back(held)
        use(pool)
        assert pool.statistics().timeouts == 1


def test_queue_timeout_override(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1, max_wait=3600) as pool:
        held = pool.take()
        with pytest.raises(PoolTimeout, match=r"within 0\.01 s"):
            pool.take(timeout=0.01)
        pool.give_back(held)


def test_infinite_wait(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1, max_wait=float("inf")) as pool, ThreadPoolExecutor(1) as threads:
        held = pool.take()
        other = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.give_back(held)
        pool.give_back(other.result())


def test_dead_client(database: PoolDatabase) -> None:
    """One who has timed out takes no part any more."""
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(2) as threads:
        held = pool.take()
        impatient = threads.submit(pool.take, 0.01)
        assert isinstance(impatient.exception(), PoolTimeout)
        patient = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.give_back(held)
        pool.give_back(patient.result(60))


def test_cancellation_in_queue(database: PoolDatabase, interrupt: Callable[[], None]) -> None:
    """An interrupt while waiting leaves the queue, and the next gets the connection."""
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(2) as threads:
        held = pool.take()

        def interrupt_the_wait() -> None:
            until(lambda: waiting(pool))
            interrupt()

        interrupter = threads.submit(interrupt_the_wait)
        with pytest.raises(KeyboardInterrupt):
            pool.take()
        interrupter.result()
        assert waiting(pool) == 0
        other = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.give_back(held)
        pool.give_back(other.result(60))


@pytest.mark.parametrize("way", ["timed out", "interrupted"])
def test_connection_not_lost(database: PoolDatabase, interrupt: Callable[[], None], way: str) -> None:
    """The interrupt, or the end of the wait, may meet the hand-over itself."""
    ended: Counter[str] = Counter()
    meant = "PoolTimeout" if way == "timed out" else "KeyboardInterrupt"
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        for number in range(2000):
            if number >= 60 and ended[meant]:
                break
            held = pool.take(timeout=60)
            caught = threading.Event()  # an interrupt is, from here on

            def hand_over(held: Pooled[Raw], caught: threading.Event) -> None:
                caught.wait(60)
                time.sleep(0.002)
                if way == "interrupted":
                    interrupt()
                pool.give_back(held)

            giver = threads.submit(hand_over, held, caught)
            del held
            try:
                caught.set()
                pool.give_back(pool.take(timeout=0.002 if way == "timed out" else 20))
                ended["served"] += 1
                if way == "interrupted":
                    time.sleep(20)
            except (KeyboardInterrupt, PoolTimeout) as error:
                ended[type(error).__name__] += 1
            giver.result(60)
            until(lambda: pool.statistics().taken == 0)
            assert waiting(pool) == 0
        pool.give_back(pool.take(timeout=60))
        assert database.most_live == 1
    print(ended)
    assert ended[meant]
