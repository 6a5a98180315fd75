"""A marked PostgreSQL beside a prepared one, against two that prepare: one row in each, on two servers.

The marked one sends neither PREPARE nor COMMIT PREPARED, and its own COMMIT is the decision: that saves a flush of its
server and the write of the log. It costs a round trip, since the INSERT of the mark is answered before any PREPARE is
sent. From 1, 8 and 32 threads; servers and log on a disk, and in memory, where a flush takes no time.

    python tests/benchmarks/bench_marked.py [--place disk|memory]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import compare
from tests.benchmarks.running import THREADS, TRANSACTIONS, chosen_places, datasources, throughput, with_txpool


def main() -> None:
    for place in chosen_places():
        with (
            place.servers(["one"], ["two"]) as servers,
            datasources(servers) as two,
            datasources(servers, marked="one") as one,
        ):
            one[0].xids_table().create()  # type: ignore[attr-defined]
            workers = {"two prepared": with_txpool(two), "one marked": with_txpool(one)}
            for threads in THREADS:
                compare(
                    f"a marked database beside a prepared one; {place}; threads: {threads}",
                    {name: partial(throughput, each, threads) for name, each in workers.items()},
                    rounds=7,
                    unit="transactions/s",
                    bound="1.18 or more",  # two that prepare take 1, and one marked 0.85
                    transactions=TRANSACTIONS,
                    servers=list(servers.values()),
                )


if __name__ == "__main__":
    main()
