"""The process that callgrind watches: transactions over one, two and three databases, and marks between.

    counted.py DRIVER "by hand"|txpool N ROUNDS FOLDER URL...

Over each number of databases: transactions to warm up, a mark, then in each round N and a mark. The databases' password
is in the environment.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.callgrind import mark
from tests.benchmarks.transactions import by_hand, with_txpool

WARM_UP = 30
#: Not on the command line, which everybody can read.
PASSWORD = "TXPOOL_BENCHMARK_PASSWORD"


def _transaction(driver: str, variant: str, folder: Path, urls: list[str]) -> Callable[[], None]:
    """A transaction over these databases. Each variant has a row of its own, so that neither waits for the other."""
    password = os.environ[PASSWORD]
    if variant == "by hand":
        return by_hand(driver, [(url, password) for url in urls], folder, row=0).transaction
    # Each number of databases has datasources of its own.
    datasources = [
        txpool.DataSource(name=f"{number}-of-{len(urls)}", driver=driver, mode="xa", url=url, password=password)
        for number, url in enumerate(urls, 1)
    ]
    return with_txpool(datasources, row=1)


def main(driver: str, variant: str, transactions: int, rounds: int, folder: Path, urls: list[str]) -> None:
    if variant == "txpool":
        txpool.configure(node_name="bench", log_url=f"sqlite:///{folder}/txlog", log_create=True)
    for count in range(1, len(urls) + 1):
        transaction = _transaction(driver, variant, folder, urls[:count])
        for _ in range(WARM_UP):
            transaction()
        # What the start has made is of no interest to the garbage collector from here on.
        gc.collect()
        gc.freeze()
        mark()
        for _ in range(rounds):
            for _ in range(transactions):
                transaction()
            mark()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]), sys.argv[6:])
