"""The process that callgrind watches: transactions over one, two and three databases, and marks between.

    counted.py "by hand"|txpool N ROUNDS FOLDER URL...

Over each number of databases: transactions to warm up, a mark, then in each round N and a mark, 2 N and a mark. The
databases' password is in PGPASSWORD.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.callgrind import mark
from tests.benchmarks.transactions import ByHand, Txpool

WARM_UP = 30


def _transaction(variant: str, folder: Path, urls: list[str]) -> Callable[[], None]:
    """A transaction over these databases. Each variant has a row of its own, so that neither waits for the other."""
    if variant == "by hand":
        return ByHand(urls, folder, row=0).transaction
    # Each number of databases has datasources of its own.
    datasources = [
        txpool.DataSource(name=f"{number}-of-{len(urls)}", driver="psycopg", mode="xa", url=url)
        for number, url in enumerate(urls, 1)
    ]
    return Txpool(datasources, row=1).transaction


def main(variant: str, transactions: int, rounds: int, folder: Path, urls: list[str]) -> None:
    if variant == "txpool":
        txpool.configure(node_name="bench", log_url=f"sqlite:///{folder}/txlog", log_create=True)
    for count in range(1, len(urls) + 1):
        transaction = _transaction(variant, folder, urls[:count])
        for _ in range(WARM_UP):
            transaction()
        # What the start has made is of no interest to the garbage collector from here on.
        gc.collect()
        gc.freeze()
        mark()
        for run in (transactions, 2 * transactions) * rounds:
            for _ in range(run):
                transaction()
            mark()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
