"""A transaction over two databases, log included, against a hand-written two-phase commit over psycopg.

`transactions.py` says what by hand means. Each of its threads has connections and a file of its own, which suits it
best: nobody waits for anybody. From 1, 8 and 32 threads; the two databases on two servers, and then on one, whose
single write-ahead log is flushed for one of them after the other; servers and logs on a disk, and in memory, where a
flush takes no time. The two tell different things: where a flush is slow, overlap hides what we cost, and where it is
fast, processor time is all that there is. Client and servers share the machine's cores.

Beside it, a marked database and a prepared one against two that prepare: no log, and a flush less.

    python tests/benchmarks/bench_two_databases.py [--place disk|memory]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

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

WANTED = {8: "1.0 or more", 32: "1.2 or more"}
#: Two that prepare take 1, so a marked one beside a prepared one has 1 / 0.85 of their throughput.
MARKED = "1.18 or more"


def _prepared(where: str, servers: Servers, place: Place) -> None:
    with datasources(servers) as sources, by_hand(servers, place) as hands:
        workers = {"by hand": hands, "txpool": with_txpool(sources)}
        for threads in THREADS:
            compare(
                f"one row in each of two databases {where}; {place}; threads: {threads}",
                {name: partial(throughput, each, threads) for name, each in workers.items()},
                rounds=7,
                unit="transactions/s",
                bound=WANTED.get(threads, ""),
                transactions=TRANSACTIONS,
                servers=list(dict.fromkeys(servers.values())),
            )


def _marked(servers: Servers, place: Place) -> None:
    marked = next(iter(servers))
    with datasources(servers) as two, datasources(servers, marked=marked) as one:
        one[0].xids_table().create()  # type: ignore[attr-defined]
        workers = {"two prepared": with_txpool(two), "one marked": with_txpool(one)}
        for threads in THREADS:
            compare(
                f"a marked database beside a prepared one on two servers; {place}; threads: {threads}",
                {name: partial(throughput, each, threads) for name, each in workers.items()},
                rounds=7,
                unit="transactions/s",
                bound=MARKED,
                transactions=TRANSACTIONS,
                servers=list(servers.values()),
            )


def main() -> None:
    for place in chosen_places():
        with place.servers(["one", "two"], ["three"]) as servers:
            _prepared("on two servers", {name: servers[name] for name in ("one", "three")}, place)
            _prepared("on one server", {name: servers[name] for name in ("one", "two")}, place)
            _marked({name: servers[name] for name in ("one", "three")}, place)


if __name__ == "__main__":
    main()
