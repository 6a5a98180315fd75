"""A transaction over three and five databases, log included, against a hand-written two-phase commit over psycopg.

Each database is on a server of its own. By hand ends one branch after the other; txpool lets all databases prepare and
commit at the same time, so that it saves the more, the more there are and the longer a flush takes. Servers and logs
are on a disk, and then in memory, where a flush takes no time.

    python tests/benchmarks/bench_more_databases.py [--place disk|memory]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import compare
from tests.benchmarks.running import TRANSACTIONS, by_hand, chosen_places, datasources, throughput, with_txpool

#: By number of databases: the time of by hand is 1.
WANTED = {3: "0.75 or less", 5: "0.6 or less"}


def _milliseconds(workers: Sequence[Callable[[], None]]) -> float:
    return 1000 / throughput(workers, 1)


def main() -> None:
    for place in chosen_places():
        with place.servers(*([f"server-{number}"] for number in range(max(WANTED)))) as all_servers:
            for count, wanted in WANTED.items():
                servers = dict(list(all_servers.items())[:count])
                with datasources(servers) as sources, by_hand(servers, place) as hands:
                    workers = {"by hand": hands, "txpool": with_txpool(sources)}
                    compare(
                        f"one row in each of {count} databases on {count} servers; {place}; one thread",
                        {name: partial(_milliseconds, each) for name, each in workers.items()},
                        rounds=7,
                        unit="ms",
                        bound=wanted,
                        transactions=TRANSACTIONS,
                        servers=list(servers.values()),
                    )


if __name__ == "__main__":
    main()
