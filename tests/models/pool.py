"""A database whose connections can be told to fail, and a pool of them."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

from txpool.pool import Pool, Pooled

Raw = sqlite3.Connection


class PoolDatabase:
    """A connector to an SQLite file, and the switches that break it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.live: set[Raw] = set()
        #: Those on which the server does not answer any more.
        self.silent: set[Raw] = set()
        self.most_live = 0
        self.connects = 0
        self.pings = 0
        self.resets = 0
        self.down: str | None = None
        self.fault: type[BaseException] = sqlite3.OperationalError
        self.reset_cleans = True
        self.gate = Event()
        self.gate.set()
        self.connecting = threading.Semaphore(0)
        self._lock = threading.Lock()

    def connect(self, timeout: float | None = None) -> Raw:
        self.connecting.release()
        with self._lock:
            self.connects += 1
        assert self.gate.wait(60)
        if self.down is not None:
            raise self.fault(self.down)
        raw = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        with self._lock:
            self.live.add(raw)
            self.most_live = max(self.most_live, len(self.live))
        return raw

    def is_clean(self, raw: Raw) -> bool:
        return raw in self.live and not raw.in_transaction

    def reset(self, raw: Raw, timeout: float | None = None) -> None:
        with self._lock:
            self.resets += 1
        if self.reset_cleans:
            raw.execute("select 1")
            raw.rollback()
            raw.execute("pragma cache_size = -2000")

    def ping(self, raw: Raw, timeout: float | None = None) -> None:
        with self._lock:
            self.pings += 1
        if raw in self.silent:
            raise TimeoutError
        raw.execute("select 1").fetchone()

    def close(self, raw: Raw) -> None:
        with self._lock:
            self.live.discard(raw)
        raw.close()

    def kill(self, *pooled: Pooled[Raw]) -> None:
        """What a server's restart does to a client: the connection is dead, and the pool has not been told."""
        for each in pooled:
            each.raw.close()


@contextmanager
def pool_of(database: PoolDatabase, **options: float) -> Iterator[Pool[Raw]]:
    with closing(Pool[Raw](database, name="orders", **options)) as pool:  # type: ignore[arg-type]
        yield pool


def waiting(pool: Pool[Raw]) -> int:
    return pool.statistics().waiting


def use(pool: Pool[Raw]) -> None:
    pool.give_back(pool.take())
