"""A transaction over two databases in an event loop, log included, against one by hand, and against threads.

By hand is what `transactions.py` says, over psycopg's AsyncConnection: each task has connections and a file of its own,
and its fdatasync holds the loop, as it does in what people write. The second table has the loop's worst gap: how late a
task was woken that sleeps for a millisecond, again and again, in each round.

    python tests/benchmarks/bench_asyncio.py [--place disk|memory]
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import psycopg

import txpool
from tests.benchmarks.report import compare, print_table
from tests.benchmarks.running import TRANSACTIONS, Place, Servers, chosen_places, datasources, throughput, with_txpool
from tests.benchmarks.transactions import ROWS, UPDATE

TASKS = (1, 32, 96)
_ROUNDS = 7
_TICK = 0.001
_numbers = itertools.count()

Transaction = Callable[[], Awaitable[None]]


class ByHand:
    """What a careful person writes over psycopg's asynchronous connections."""

    def __init__(self, connections: list[psycopg.AsyncConnection], folder: Path, row: int) -> None:
        self._connections = connections
        self._log = os.open(folder / f"by-hand-{next(_numbers)}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._row = (row,)

    async def transaction(self) -> None:
        gid = f"by-hand-{next(_numbers)}"
        for number, connection in enumerate(self._connections):
            await connection.tpc_begin(connection.xid(1, gid, str(number)))
            await connection.execute(UPDATE, self._row)
        for connection in self._connections:
            await connection.tpc_prepare()
        os.write(self._log, f"{gid} commits\n".encode())
        os.fdatasync(self._log)
        for connection in self._connections:
            await connection.tpc_commit()


def in_tasks(sources: list[txpool.DataSource], row: int) -> Transaction:
    values = (row,)

    async def transaction() -> None:
        async with txpool.transaction():
            for source in sources:
                async with await txpool.aconnect(source) as connection:
                    await connection.execute(UPDATE, values)

    return transaction


async def _throughput(workers: list[Transaction], gaps: list[float]) -> float:
    each = TRANSACTIONS // len(workers)

    async def work(transaction: Transaction) -> None:
        for _ in range(each):
            await transaction()

    async def tick() -> None:
        worst = 0.0
        try:
            while True:
                before = time.perf_counter()
                await asyncio.sleep(_TICK)
                worst = max(worst, time.perf_counter() - before - _TICK)
        finally:
            gaps.append(worst * 1e3)

    ticking = asyncio.ensure_future(tick())
    started = time.perf_counter()
    await asyncio.gather(*map(work, workers))
    spent = time.perf_counter() - started
    ticking.cancel()
    await asyncio.wait([ticking])
    return len(workers) * each / spent


async def _hands(servers: Servers, place: Place) -> list[Transaction]:
    connect = psycopg.AsyncConnection.connect
    return [
        ByHand(
            [await connect(server.url(name), password=server.password) for name, server in servers.items()],
            place.folder,
            row,
        ).transaction
        for row in range(max(TASKS))
    ]


def _compare(servers: Servers, place: Place) -> None:
    with datasources(servers) as sources, asyncio.Runner() as runner:
        threads = with_txpool(sources)
        tasks = [in_tasks(sources, row) for row in range(max(TASKS))]
        hands = runner.run(_hands(servers, place))
        for number in TASKS:
            gaps: dict[str, list[float]] = defaultdict(list)

            def measured(name: str, workers: list[Transaction], number: int = number) -> float:
                return runner.run(_throughput(workers[:number], gaps[name]))

            ways = {
                "by hand": partial(measured, "by hand", hands),
                "txpool, tasks": partial(measured, "txpool, tasks", tasks),
            }
            if number <= len(threads):
                ways["txpool, threads"] = partial(throughput, threads, number)
            compare(
                f"one row in each of two databases on two servers; {place}; tasks: {number}",
                ways,
                rounds=_ROUNDS,
                unit="transactions/s",
                transactions=TRANSACTIONS,
                servers=[*servers.values()],
            )
            rows = [[name, f"{statistics.median(each[1:]):.1f}", f"{max(each[1:]):.1f}"] for name, each in gaps.items()]
            print_table(f"the loop's worst gap; tasks: {number}", ["", "ms, median of the rounds", "max"], rows)


def main() -> None:
    for place in chosen_places():
        with place.servers(["one"], ["two"]) as servers:
            _compare(servers, place)


assert max(TASKS) <= ROWS

if __name__ == "__main__":
    main()
