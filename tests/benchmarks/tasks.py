"""One transaction over several databases from tasks of an event loop, by hand and with txpool.

By hand is what `transactions.py` says, over psycopg's AsyncConnection: each task has connections and a file of its own,
and its fdatasync holds the loop, as it does in what people write.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import psycopg

import txpool
from tests.benchmarks.transactions import UPDATE

_numbers = itertools.count()

Transaction = Callable[[], Awaitable[None]]


class ByHandInTask:
    """What a careful person writes over psycopg's asynchronous connections."""

    def __init__(self, connections: list[psycopg.AsyncConnection], folder: Path, row: int) -> None:
        self._connections = connections
        self._log = os.open(folder / f"in-task-{next(_numbers)}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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


async def by_hand(databases: Iterable[tuple[str, str]], folder: Path, tasks: int) -> list[Transaction]:
    """For each task the transaction by hand over these databases, each by its url and password."""
    connect, found = psycopg.AsyncConnection.connect, [*databases]
    return [
        ByHandInTask([await connect(url, password=password) for url, password in found], folder, row).transaction
        for row in range(tasks)
    ]


def in_tasks(sources: Sequence[txpool.DataSource], tasks: int) -> list[Transaction]:
    """For each task the transaction with txpool; they share the pools."""
    return [_with_txpool(sources, row) for row in range(tasks)]


def _with_txpool(sources: Sequence[txpool.DataSource], row: int) -> Transaction:
    values = (row,)

    async def transaction() -> None:
        async with txpool.transaction():
            for source in sources:
                async with await txpool.aconnect(source) as connection:
                    await connection.execute(UPDATE, values)

    return transaction


async def shared(workers: Sequence[Transaction], transactions: int) -> None:
    """So many transactions, shared by a task for each worker."""

    async def work(transaction: Transaction, times: int) -> None:
        for _ in range(times):
            await transaction()

    more, each = transactions % len(workers), transactions // len(workers)
    times = [each + (number < more) for number in range(len(workers))]
    await asyncio.gather(*map(work, workers, times))
