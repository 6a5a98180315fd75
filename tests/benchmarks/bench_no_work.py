"""Transactions over two resources that do nothing, with a durable log, from 1 to 400 threads: txpool and Narayana.

What is left is the coordinator and its log. Narayana's object store is once of files, as it is by default, and once the
journal of Artemis, which flushes for several threads together; txpool's log is SQLite's, which does so, too. All stand
in one folder. Narayana runs in a process of its own, which warms up first. It needs a JDK (17 or later) and Maven, as
bench_narayana.py.

    python tests/benchmarks/bench_no_work.py [--place disk|memory]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.bench_narayana import Narayana, libraries_in, narayana_process
from tests.benchmarks.report import compare
from tests.benchmarks.running import chosen_places, throughput
from txpool.resource import Resource, Work

#: By number of threads, the transactions of a round.
_TRANSACTIONS = {1: 100, 8: 800, 32: 1_600, 100: 4_000, 400: 8_000}
_MOST = max(_TRANSACTIONS)
_ROUNDS = 3


class NoWork(Work):
    """It takes part, and does nothing."""

    def prepare(self, xid: str) -> None:
        """Say yes."""

    def rollback(self) -> None:
        """There is nothing to undo."""


class Idle(Resource):
    """A place in which nothing is kept."""

    def identity(self) -> str:
        return self.name

    def generation(self) -> str:
        return "1"

    def begin(self) -> Work:
        return NoWork()

    def prepared(self) -> Iterable[str]:
        return ()

    def commit(self, xid: str) -> bool:
        return True

    def rollback(self, xid: str) -> bool:
        return True


def _transaction() -> Callable[[], None]:
    resources = [Idle("one"), Idle("two")]

    def transaction() -> None:
        with txpool.transaction() as tx:
            for resource in resources:
                tx.enlist(resource)

    return transaction


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        libraries = libraries_in(Path(folder))
        for place in chosen_places():
            with ExitStack() as stack:
                others: dict[str, Narayana] = {}
                for name, journal in (("files", False), ("a journal", True)):
                    store = place.folder / f"ObjectStore {name}"
                    process = narayana_process(libraries, store, threads=_MOST, journal=journal)
                    narayana = others[f"Narayana, {name}"] = stack.enter_context(process)
                    narayana.throughput(_MOST, _TRANSACTIONS[_MOST])  # warm up
                ours = [_transaction()] * _MOST
                for threads, transactions in _TRANSACTIONS.items():
                    variants = {name: partial(each.throughput, threads, transactions) for name, each in others.items()}
                    compare(
                        f"two resources that do nothing; {place}; threads: {threads}",
                        variants | {"txpool": partial(throughput, ours, threads, transactions)},
                        rounds=_ROUNDS,
                        unit="transactions/s",
                    )


if __name__ == "__main__":
    main()
