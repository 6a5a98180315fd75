"""A transaction over two databases, log included, against a hand-written two-phase commit over psycopg.

By hand means: one row into each database, PREPARE, PREPARE, the decision appended to a file and fdatasync'ed, COMMIT
PREPARED, COMMIT PREPARED, one after another, by psycopg's own tpc_*(), which cost less than the same as SQL. Each
thread has connections and a file of its own, which suits the hand-written one best: nobody waits for anybody. From one
thread as a time, and from 8 threads as a throughput; the two databases on two servers, and then on one, whose single
write-ahead log is flushed for one of them after the other. Client and servers share the machine's cores: where these
are few, the 8 threads measure how much processor time a transaction takes, and little else.

    python tests/benchmarks/bench_two_databases.py
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.report import compare
from txpool.demo.server import EmbeddedPostgres

TRANSACTIONS = 300
THREADS = 8
INSERT = "insert into t (a) values (%s)"
_numbers = itertools.count()
Servers = dict[str, EmbeddedPostgres]


class ByHand:
    """What a careful person writes without a transaction manager: correct as long as nothing fails."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self._connections = [psycopg.connect(server.dsn(name)) for name, server in servers.items()]
        self._log = os.open(folder / f"by-hand-{next(_numbers)}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def transaction(self) -> None:
        one, two = self._connections
        gid = f"by-hand-{next(_numbers)}"
        for number, connection in enumerate((one, two)):
            connection.tpc_begin(connection.xid(1, gid, str(number)))
            connection.execute(INSERT, (1,))
        one.tpc_prepare()
        two.tpc_prepare()
        os.write(self._log, f"{gid} commits\n".encode())
        os.fdatasync(self._log)
        one.tpc_commit()
        two.tpc_commit()


class Txpool:
    """The same with txpool."""

    def __init__(self, one: txpool.DataSource, two: txpool.DataSource) -> None:
        self._datasources = (one, two)

    def transaction(self) -> None:
        one, two = self._datasources
        with txpool.transaction():
            with one.connect() as connection:
                connection.execute(INSERT, (1,))
            with two.connect() as connection:
                connection.execute(INSERT, (1,))


def _milliseconds(transaction: Callable[[], None]) -> float:
    started = time.perf_counter()
    for _ in range(TRANSACTIONS):
        transaction()
    return (time.perf_counter() - started) / TRANSACTIONS * 1000


def _throughput(workers: list[Callable[[], None]]) -> float:
    """Transactions a second, from one thread for each worker."""
    start = threading.Barrier(len(workers) + 1)

    def work(transaction: Callable[[], None]) -> None:
        start.wait()
        for _ in range(TRANSACTIONS // 2):
            transaction()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    start.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return len(workers) * (TRANSACTIONS // 2) / (time.perf_counter() - started)


def _compare(where: str, servers: Servers, folder: Path) -> None:
    for name, server in servers.items():
        with psycopg.connect(server.dsn(name)) as connection:
            connection.execute("create table t (id bigserial primary key, a integer)")
    datasources = [
        txpool.DataSource(
            name=name,
            driver="psycopg",
            mode="xa",
            url=server.url(name),
            password=server.password,
            pool_max_size=THREADS,
        )
        for name, server in servers.items()
    ]
    by_hand = [ByHand(servers, folder) for _ in range(THREADS)]
    ours = [Txpool(*datasources) for _ in range(THREADS)]
    compare(
        f"one row in each of two databases {where}, one thread",
        {
            "by hand": lambda: _milliseconds(by_hand[0].transaction),
            "txpool": lambda: _milliseconds(ours[0].transaction),
        },
        rounds=9,
        unit="ms",
        bound="0.85 or less",
        transactions=TRANSACTIONS,
        servers=list(dict.fromkeys(servers.values())),
    )
    compare(
        f"one row in each of two databases {where}, {THREADS} threads",
        {
            "by hand": lambda: _throughput([worker.transaction for worker in by_hand]),
            "txpool": lambda: _throughput([worker.transaction for worker in ours]),
        },
        rounds=7,
        unit="transactions/s",
        bound="1.30 or more",
        transactions=THREADS * (TRANSACTIONS // 2),
        servers=list(dict.fromkeys(servers.values())),
    )
    for datasource in datasources:
        datasource.close()


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        EmbeddedPostgres(databases=("one", "two")) as first,
        EmbeddedPostgres(databases=("three",)) as second,
    ):
        folder = Path(scratch)
        txpool.configure(node_name="bench", log_url=f"sqlite:///{folder}/txlog", log_create=True)
        _compare("on two servers", {"one": first, "three": second}, folder)
        with psycopg.connect(first.dsn("one")) as connection:
            connection.execute("drop table t")
        _compare("on one server", {"one": first, "two": first}, folder)


if __name__ == "__main__":
    main()
