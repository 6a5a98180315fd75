"""An interrupt that comes just as a thread gets a connection's lock: the lock is free again."""

from __future__ import annotations

import signal
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import txpool
from txpool.datasource import DataSource

_TIMEOUT = 60


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """An interrupt is raised, even where the tests run with that ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "use",
    [
        lambda cursor: cursor.execute("select 2"),
        lambda cursor: cursor.executemany("select %s", [(1,)]),
        lambda cursor: cursor.fetchone(),
        lambda cursor: cursor.connection.cursor(),
        lambda cursor: cursor.connection.set_autocommit(False),
    ],
    ids=["execute", "executemany", "fetchone", "cursor", "an attribute"],
)
def test_an_interrupt_behind_the_wait_for_the_lock(postgres_source: DataSource, use: Callable[[Any], object]) -> None:
    with txpool.transaction():
        connection = postgres_source.connect()
        cursor = connection.execute("select 1")
        lock = connection.enlistment.lock
        locked = threading.Event()

        def hold() -> None:
            with lock:
                locked.set()
                time.sleep(0.2)  # the main thread waits for it by then
                interrupt_main()  # seen by the main thread once it has the lock

        holder = threading.Thread(target=hold)
        holder.start()
        assert locked.wait(_TIMEOUT)
        with pytest.raises(KeyboardInterrupt):
            use(cursor)
        holder.join()

        def work() -> None:
            if lock.acquire(timeout=_TIMEOUT):
                lock.release()
                free.append(True)

        free: list[bool] = []
        other = threading.Thread(target=work)
        other.start()
        other.join()
        assert free
        assert connection.execute("select 3").fetchone() == (3,)
