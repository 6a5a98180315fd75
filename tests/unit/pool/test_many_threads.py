"""Many threads at once: few connections, a fair share, and nothing lost whatever breaks."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tests.models.pool import PoolDatabase, Raw, pool_of, use, waiting
from tests.support.waiting import until
from txpool.errors import PoolTimeout


def test_spike(database: PoolDatabase) -> None:
    """Many at once are served by few connections."""
    with pool_of(database, max_size=3) as pool, ThreadPoolExecutor(20) as threads:
        for done in [threads.submit(use, pool) for _ in range(200)]:
            done.result(60)
        assert database.most_live <= 3


def test_uniform_use(database: PoolDatabase) -> None:
    """With hand-over in order, no thread gets more turns than another by more than a few."""
    with pool_of(database, max_size=2) as pool:
        turns: Counter[int] = Counter()
        stop, start = Event(), threading.Barrier(8)

        def work(number: int) -> None:
            start.wait()
            while not stop.is_set():
                pooled = pool.take()
                turns[number] += 1
                stop.wait(0.001)
                pool.give_back(pooled)
                if turns[number] == 50:
                    stop.set()

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(work, number) for number in range(8)]:
                done.result()
        assert min(turns.values()) >= 0.8 * max(turns.values()), turns


@pytest.mark.parametrize("round_", range(3))
def test_stress(database: PoolDatabase, round_: int) -> None:
    """Never more than the cap, never two holders, nothing lost; whatever threads do and whatever breaks."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    cap = dice.randint(1, 5)
    holders: dict[Raw, int] = {}
    outcomes: Counter[str] = Counter()

    def work(number: int, dice: random.Random) -> None:
        for _ in range(150):
            luck = dice.random()
            try:
                pooled = pool.take(timeout=0 if luck < 0.1 else 0.001 if luck < 0.2 else 20)
            except (PoolTimeout, sqlite3.OperationalError) as error:
                outcomes[type(error).__name__] += 1
                continue
            assert holders.setdefault(pooled.raw, number) == number, "two hold the same connection"
            assert pooled.raw.execute("select 1").fetchone() == (1,)
            if dice.random() < 0.3:
                time.sleep(dice.random() / 1000)
            luck = dice.random()
            if luck < 0.05:
                pooled.raw.execute("begin")
            elif luck < 0.1:
                database.kill(pooled)
                pooled.dirty = True
            elif luck < 0.13:
                database.down = None if database.down else "away"
            del holders[pooled.raw]
            if luck <= 0.94:
                pool.give_back(pooled)
            elif luck <= 0.97:
                pool.discard(pooled)
            del pooled  # and above: dropped without a word
            if luck > 0.99:
                pool.drain()

    bypass = dice.choice([0.0, 0.5])
    with pool_of(database, min_size=dice.randint(0, 1), max_size=cap, check_bypass=bypass, idle_timeout=0.01) as pool:
        with ThreadPoolExecutor(12) as threads:
            for done in [threads.submit(work, n, random.Random(dice.random())) for n in range(12)]:
                done.result()
        database.down = None
        until(lambda: pool.statistics().taken == 0)
        everything = [pool.take(timeout=60) for _ in range(cap)]
        assert len({pooled.raw for pooled in everything}) == cap, "all places are there"
        with pytest.raises(PoolTimeout):
            pool.take(timeout=0)
        for pooled in everything:
            pool.give_back(pooled)
        assert database.most_live <= cap
        assert waiting(pool) == 0
    assert not database.live
