"""A marked PostgreSQL beside a prepared one, against two that prepare: one row in each, on two servers.

The marked one sends neither PREPARE nor COMMIT PREPARED, and its own COMMIT is the decision: three flushes instead of
five. It costs a round trip, since the INSERT of the mark is answered before any PREPARE is sent, and its server writes,
updates and deletes a row. Of the five flushes, those of the two PREPAREs run side by side, and so do those of the two
COMMIT PREPAREDs: each way, three follow each other. So to one thread a mark is worth it only where the servers and the
log share a disk whose flushes queue up: elsewhere the round trip costs more than the log. Several threads gain from the
work that is saved. From one thread as a time, and from 8 threads as a throughput. TMPDIR says where the servers and the
log keep their data.

    [TMPDIR=/dev/shm] python tests/benchmarks/bench_marked.py
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.report import compare
from tests.benchmarks.transactions import TABLE, Txpool
from txpool.demo.server import EmbeddedPostgres

TRANSACTIONS = 200
THREADS = 8


def _milliseconds(transaction: Callable[[], None]) -> float:
    started = time.perf_counter()
    for _ in range(TRANSACTIONS):
        transaction()
    return (time.perf_counter() - started) / TRANSACTIONS * 1000


def _throughput(workers: Sequence[Txpool]) -> float:
    """Transactions a second, from one thread for each worker."""
    start = threading.Barrier(len(workers) + 1)

    def work(worker: Txpool) -> None:
        start.wait()
        for _ in range(TRANSACTIONS // 2):
            worker.transaction()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    start.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return len(workers) * (TRANSACTIONS // 2) / (time.perf_counter() - started)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedPostgres(databases=("one",)) as first,
        EmbeddedPostgres(databases=("two",)) as second,
    ):
        txpool.configure(node_name="bench", log_url=f"sqlite:///{folder}/txlog", log_create=True)

        def datasource(name: str, server: EmbeddedPostgres, mode: str) -> txpool.DataSource:
            url = server.url(server.databases[0])
            return txpool.DataSource(
                name=name, driver="psycopg", mode=mode, url=url, password=server.password, pool_max_size=THREADS
            )

        for server in (first, second):
            with psycopg.connect(server.dsn(server.databases[0])) as connection:
                connection.execute(TABLE)
        one, two, marked = (
            datasource("one", first, "xa"),
            datasource("two", second, "xa"),
            datasource("marked", second, "cmr"),
        )
        marked.xids_table().create()
        pairs = {"two prepared": (one, two), "one prepared, one marked": (one, marked)}
        workers = {name: [Txpool(pair, row) for row in range(THREADS)] for name, pair in pairs.items()}
        for title, unit, bound, count, measure in (
            ("one thread", "ms", "0.85 or less", TRANSACTIONS, lambda each: _milliseconds(each[0].transaction)),
            (f"{THREADS} threads", "transactions/s", "1.18 or more", THREADS * (TRANSACTIONS // 2), _throughput),
        ):
            compare(
                f"one row in each of two databases on two servers, {title}",
                {name: lambda each=each, measure=measure: measure(each) for name, each in workers.items()},
                rounds=9,
                unit=unit,
                bound=bound,
                transactions=count,
                servers=(first, second),
            )


if __name__ == "__main__":
    main()
