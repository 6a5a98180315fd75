"""What a pool tells: who holds its connections, who leaks them, why none came, and its numbers."""

from __future__ import annotations

import logging
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest

from tests.models.pool import PoolDatabase, Raw, pool_of, waiting
from tests.support.waiting import until
from txpool.errors import PoolTimeout
from txpool.pool import Pooled


def test_timeout_says_who_holds(database: PoolDatabase) -> None:
    with pool_of(database, max_size=2, leak_threshold=3600) as pool:
        mine = pool.take()
        theirs: list[Pooled[Raw]] = []
        thread = Thread(target=lambda: theirs.append(pool.take()), name="nightly-import")
        thread.start()
        thread.join()
        with pytest.raises(PoolTimeout) as caught:
            pool.take(timeout=0)
        text = str(caught.value)
        assert "'orders'" in text
        assert "2 of 2 are in use" in text
        assert "thread 'nightly-import' (which has ended)" in text
        assert "(this one) for" in text
        assert "test_timeout_says_who_holds" in text, "the stack where it was taken"
        assert "/txpool/pool/" not in text, "the stack begins outside the pool"
        pool.give_back(mine)
        pool.give_back(theirs[0])


def test_timeout_tells_the_connect_error(database: PoolDatabase) -> None:
    database.down = "no such role"
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        with pytest.raises(sqlite3.OperationalError):
            pool.take()
        database.gate.clear()
        slow = threads.submit(pool.take)
        until(lambda: database.connects == 2)
        with pytest.raises(PoolTimeout) as caught:
            pool.take(timeout=0.01)
        assert "1 being opened" in str(caught.value)
        assert "OperationalError: no such role" in str(caught.value)
        database.gate.set()
        assert slow.exception(20) is not None


def test_leak_report(database: PoolDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each leak, with the stack of the taker."""
    with pool_of(database, leak_threshold=0.02) as pool:
        pooled = pool.take()
        until(lambda: any(record.levelno == logging.WARNING for record in caplog.records))
        (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert pool.statistics().leaks == 1
        assert record.name == "txpool.pool"
        assert "'MainThread'" in record.getMessage()
        assert "test_leak_report" in record.getMessage()
        time.sleep(0.05)
        assert pool.statistics().leaks == 1
        pool.give_back(pooled)
        again = pool.take()
        until(lambda: pool.statistics().leaks == 2)
        pool.give_back(again)


def test_stats_usage(database: PoolDatabase) -> None:
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        held = pool.take()
        other = threads.submit(pool.take)
        until(lambda: waiting(pool))
        numbers = pool.statistics()
        assert (numbers.size, numbers.taken, numbers.idle, numbers.waiting) == (1, 1, 0, 1)
        time.sleep(0.02)
        pool.give_back(held)
        pool.discard(other.result(60))
        numbers = pool.statistics()
        assert (numbers.takes, numbers.waits, numbers.created, numbers.destroyed) == (2, 1, 1, 1)
        assert numbers.wait_seconds >= 0.02
        assert numbers.use_seconds >= 0.02
        assert (numbers.size, numbers.taken, numbers.idle, numbers.waiting) == (0, 0, 0, 0)
        assert repr(pool) == "<Pool 'orders' 0 idle, 0 taken of at most 1, 0 waiting>"
