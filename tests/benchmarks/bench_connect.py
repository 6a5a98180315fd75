"""Taking a connection and giving it back, against psycopg_pool: alone, and 32 threads over 4 connections.

python tests/benchmarks/bench_connect.py
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg_pool

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import compare
from txpool.datasource import DataSource
from txpool.demo.server import EmbeddedPostgres

LOOPS = 20_000
THREADS, CONNECTIONS, HOLD, SECONDS = 32, 4, 0.001, 3.0


def _microseconds(take_and_give_back: Callable[[int], None]) -> float:
    started = time.perf_counter()
    take_and_give_back(LOOPS)
    return (time.perf_counter() - started) / LOOPS * 1e6


def _fewest_turns(take_hold_give_back: Callable[[], None]) -> float:
    """The turns of the thread that got the fewest, in percent of a fair share."""
    counts = [0] * THREADS
    deadline = time.monotonic() + SECONDS

    def work(number: int) -> None:
        while time.monotonic() < deadline:
            take_hold_give_back()
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(counts) / (sum(counts) / THREADS) * 100


def main() -> None:
    with (
        EmbeddedPostgres() as server,
        psycopg_pool.ConnectionPool(server.dsn("one"), min_size=1, max_size=CONNECTIONS) as theirs,
        DataSource(
            name="one",
            driver="psycopg",
            url=server.url("one"),
            password=server.password,
            pool_max_size=CONNECTIONS,
        ) as ours,
    ):

        def psycopg_pool_alone(loops: int) -> None:
            take, give_back = theirs.getconn, theirs.putconn
            for _ in range(loops):
                give_back(take())

        def txpool_alone(loops: int) -> None:
            connect = ours.connect
            for _ in range(loops):
                connect().close()

        def psycopg_pool_shared() -> None:
            connection = theirs.getconn()
            time.sleep(HOLD)
            theirs.putconn(connection)

        def txpool_shared() -> None:
            connection = ours.connect()
            time.sleep(HOLD)
            connection.close()

        compare(
            "take and give back, alone",
            {
                "psycopg_pool": lambda: _microseconds(psycopg_pool_alone),
                "txpool": lambda: _microseconds(txpool_alone),
            },
            rounds=15,
            unit="µs",
            bound="0.60 or less",
        )
        compare(
            f"{THREADS} threads, {CONNECTIONS} connections: the fewest turns of a thread, of a fair share",
            {
                "psycopg_pool": lambda: _fewest_turns(psycopg_pool_shared),
                "txpool": lambda: _fewest_turns(txpool_shared),
            },
            rounds=3,
            unit="%",
            bound="0.90 or more",
        )


if __name__ == "__main__":
    main()
