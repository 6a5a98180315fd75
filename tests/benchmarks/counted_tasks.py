"""The process that callgrind watches for `bench_asyncio.py`: transactions from many tasks, and marks between.

    counted_tasks.py "by hand"|txpool TASKS N ROUNDS FOLDER URL...

As `counted.py`. N transactions are shared by the tasks.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.callgrind import mark
from tests.benchmarks.counted import PASSWORD
from tests.benchmarks.tasks import Transaction, by_hand, in_tasks, shared

WARM_UP = 2


async def _count(workers: list[Transaction], transactions: int, rounds: int) -> None:
    await shared(workers, WARM_UP * len(workers))
    gc.collect()
    gc.freeze()
    mark()
    for run in (transactions, 2 * transactions) * rounds:
        await shared(workers, run)
        mark()


async def _main(variant: str, tasks: int, transactions: int, rounds: int, folder: Path, urls: list[str]) -> None:
    password = os.environ[PASSWORD]
    if variant == "by hand":
        workers = await by_hand([(url, password) for url in urls], folder, tasks)
    else:
        txpool.configure(node_name="bench", log_url=f"sqlite:///{folder}/txlog", log_create=True)
        options = {"driver": "psycopg", "mode": "xa", "password": password, "pool_max_size": tasks}
        sources = [txpool.DataSource(name=f"of-{number}", url=url, **options) for number, url in enumerate(urls)]
        workers = in_tasks(sources, tasks)
    await _count(workers, transactions, rounds)


if __name__ == "__main__":
    asyncio.run(
        _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]), sys.argv[6:])
    )
