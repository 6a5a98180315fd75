"""A transaction over two databases, log included, against a hand-written two-phase commit over the same driver.

`transactions.py` says what by hand means. Each of its threads has connections and a file of its own, which suits it
best: nobody waits for anybody. From 1, 8 and 32 threads; the two databases on two servers, and then on one, whose
single log is flushed for one of them after the other; servers and logs on a disk, and in memory, where a
flush takes no time. The two tell different things: where a flush is slow, overlap hides what we cost, and where it is
fast, processor time is all that there is. Client and servers share the machine's cores. With its log in memory txpool
promises nothing after a crash: that says what the log costs, and what is left are the servers and the driver, as by
hand has them. Over psycopg txpool's messages are sent with nothing around them, too: with the cores full, throughput
is the inverse of processor time, and what ours has beyond theirs is all that can be saved.

    python tests/benchmarks/bench_two_databases.py [--place disk|memory] [--driver psycopg|pymysql|mysqlclient]
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.report import compare
from tests.benchmarks.running import (
    THREADS,
    TRANSACTIONS,
    Place,
    Servers,
    by_hand,
    chosen_places,
    datasources,
    throughput,
    with_txpool,
)
from tests.benchmarks.transactions import DRIVERS

#: By driver and number of threads.
WANTED = {
    ("psycopg", 8): "1.0 or more",
    ("psycopg", 32): "1.2 or more",
    ("pymysql", 1): "1.0 or more",
    ("mysqlclient", 1): "1.0 or more",
}


def _compare(where: str, servers: Servers, place: Place) -> None:
    with ExitStack() as stack:
        sources = stack.enter_context(datasources(servers, driver=place.driver))
        hands = stack.enter_context(by_hand(servers, place))
        ours = with_txpool(sources)

        def logging_to_memory(threads: int) -> float:
            txpool.configure(node_name="bench", log_url="memory:")
            try:
                return throughput(ours, threads)
            finally:
                place.configure_log()

        ways = {
            "by hand": partial(throughput, hands),
            "txpool": partial(throughput, ours),
            "txpool, its log in memory": logging_to_memory,
        }
        if place.driver == "psycopg":
            bare = stack.enter_context(by_hand(servers, place, messages=True))
            ways["txpool's messages, bare"] = partial(throughput, bare)
        for threads in THREADS:
            compare(
                f"one row in each of two databases {where}; {place.driver}; {place}; threads: {threads}",
                {name: partial(way, threads) for name, way in ways.items()},
                rounds=7,
                unit="transactions/s",
                bound=WANTED.get((place.driver, threads), ""),
                transactions=TRANSACTIONS,
                servers=list(dict.fromkeys(servers.values())),
            )


def main() -> None:
    for place in chosen_places(*DRIVERS):
        with place.servers(["one", "two"], ["three"]) as servers:
            _compare("on two servers", {name: servers[name] for name in ("one", "three")}, place)
            _compare("on one server", {name: servers[name] for name in ("one", "two")}, place)


if __name__ == "__main__":
    main()
