"""The pool against psycopg_pool: what taking costs, and who gets how many turns. Run by hand:

    python tests/benchmarks/bench_pool.py

Both pools hand out psycopg connections to one embedded PostgreSQL, in turn, in the same process.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import threading
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import psycopg
import psycopg_pool
from psycopg.pq import TransactionStatus

import txpool
from txpool.demo.server import EmbeddedPostgres
from txpool.pool import Pool

LOOPS, ROUNDS = 20_000, 11
THREADS, CONNECTIONS, HOLD, SECONDS = 32, 4, 0.001, 4.0


class Psycopg:
    """The least that a connector does."""

    def __init__(self, url: str) -> None:
        self._url = url

    def connect(self, *, timeout: float) -> psycopg.Connection:
        return psycopg.connect(self._url)

    def is_clean(self, raw: psycopg.Connection) -> bool:
        return raw.pgconn.transaction_status == TransactionStatus.IDLE

    def reset(self, raw: psycopg.Connection, timeout: float) -> None:
        raw.rollback()

    def ping(self, raw: psycopg.Connection, timeout: float) -> None:
        raw.pgconn.exec_(b"")

    def close(self, raw: psycopg.Connection) -> None:
        raw.close()


def spread(values: list[float]) -> str:
    return f"median {statistics.median(values):8.3f}   from {min(values):.3f} to {max(values):.3f}"


def turns(use: Callable[[], None]) -> list[int]:
    """How often each thread held a connection."""
    counts = [0] * THREADS
    stop = threading.Event()
    start = threading.Barrier(THREADS + 1)

    def work(number: int) -> None:
        start.wait()
        while not stop.is_set():
            use()
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    start.wait()
    time.sleep(SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    return counts


def main() -> None:
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {platform.system()}")
    print(f"Python {sys.version.split()[0]}, psycopg {psycopg.__version__} ({psycopg.pq.__impl__})", end=", ")
    print(f"psycopg_pool {psycopg_pool.__version__}, txpool from {Path(txpool.__file__ or '').parent}")
    with EmbeddedPostgres() as server:
        url = server.dsn("one")
        ours = Pool(Psycopg(url), name="bench", min_size=CONNECTIONS, max_size=CONNECTIONS)
        theirs = psycopg_pool.ConnectionPool(url, min_size=CONNECTIONS, max_size=CONNECTIONS, open=True)
        ours.wait_ready()
        theirs.wait()

        def our_cycle() -> None:
            ours.give_back(ours.take())

        def their_cycle() -> None:
            theirs.putconn(theirs.getconn())

        def our_turn() -> None:
            pooled = ours.take()
            time.sleep(HOLD)
            ours.give_back(pooled)

        def their_turn() -> None:
            raw = theirs.getconn()
            time.sleep(HOLD)
            theirs.putconn(raw)

        try:
            print(f"\ntake and give back, one thread, µs ({ROUNDS} rounds of {LOOPS}, alternating)")
            cycles: dict[str, list[float]] = {"txpool.pool": [], "psycopg_pool": []}
            for _ in range(ROUNDS):
                for name, cycle in (("txpool.pool", our_cycle), ("psycopg_pool", their_cycle)):
                    cycles[name].append(timeit.timeit(cycle, number=LOOPS) / LOOPS * 1e6)
            for name, values in cycles.items():
                print(f"  {name:13} {spread(values)}")
            ratios = [mine / other for mine, other in zip(*cycles.values(), strict=True)]
            print(f"  {'ratio':13} {spread(ratios)}")

            print(f"\nturns, {THREADS} threads on {CONNECTIONS} connections held {HOLD * 1e3:g} ms, {SECONDS:g} s")
            for name, turn in (("txpool.pool", our_turn), ("psycopg_pool", their_turn)):
                counts = turns(turn)
                shares = f"{min(counts)} to {max(counts)} a thread, fairness {min(counts) / max(counts):.3f}"
                print(f"  {name:13} {shares}, {sum(counts)} in all")
        finally:
            ours.close()
            theirs.close()


if __name__ == "__main__":
    main()
