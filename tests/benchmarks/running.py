"""What the benchmarks of several databases share: where servers and logs stand, tables, datasources, threads."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import txpool
from tests.benchmarks import transactions
from tests.benchmarks.servers import Server, create_table, server_for
from tests.benchmarks.transactions import ROWS

#: Which threads of a benchmark there are: each has a row of its own.
THREADS = (1, 8, 32)
#: How many transactions a round has, over all threads: so many that its end, with some threads idle, counts little.
TRANSACTIONS = 1_920

_MEMORY = Path("/dev/shm")
PLACES = ("disk", "memory")
#: The databases' names and their servers; a server may have several of them.
Servers = Mapping[str, Server]


@dataclass(frozen=True)
class Place:
    """A folder in which servers, the decision log and the file of by hand stand; who waits for a flush waits there."""

    name: str
    folder: Path
    driver: str

    @contextmanager
    def servers(self, *databases: Sequence[str]) -> Iterator[dict[str, Server]]:
        """A server for each sequence of databases, each database with its table; by database, the server."""
        with ExitStack() as stack:
            found = {}
            for names in databases:
                server = stack.enter_context(server_for(self.driver, names, self.folder))
                found.update(dict.fromkeys(names, server))
            for name, server in found.items():
                create_table(self.driver, server, name)
            yield found

    def configure_log(self) -> None:
        """Let the process's decision log stand here."""
        txpool.configure(node_name="bench", log_url=f"sqlite:///{self.folder}/txlog", log_create=True)

    def __str__(self) -> str:
        return f"{self.name}: a flush takes {flush_time(self.folder):,.0f} µs"


@contextmanager
def place_in(name: str, driver: str = "psycopg") -> Iterator[Place]:
    """The place of this name: disk, where a flush takes its time, or memory, where it takes none."""
    parent = _MEMORY if name == "memory" else None
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # a server that root starts runs as nobody
        yield Place(name, Path(folder), driver)


def places(chosen: str | None = None, driver: str = "psycopg") -> Iterator[Place]:
    """The disk and memory, or the one of these names that was chosen.

    On the disk a flush takes its time, and while several wait, processor time costs nothing. In memory a flush takes
    none: what is left is processor time.
    """
    for name in PLACES:
        if chosen in (None, name):
            with place_in(name, driver) as place:
                yield place


def chosen_places(*drivers: str) -> Iterator[Place]:
    """The places that the command line chooses, each with a log configured in it; and which of these drivers."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--place", choices=PLACES, help="where servers and logs stand; both by default")
    arguments.add_argument("--driver", choices=drivers or ["psycopg"], default="psycopg")
    options = arguments.parse_args()
    for place in places(options.place, options.driver):
        place.configure_log()
        yield place


def flush_time(folder: Path) -> float:
    """The median microseconds of an append of 100 bytes and its fdatasync."""
    path = folder / "flushed"
    with path.open("ab", buffering=0) as file:
        times = []
        for _ in range(201):
            file.write(b"x" * 100)
            started = time.perf_counter()
            os.fdatasync(file)
            times.append(time.perf_counter() - started)
    path.unlink()
    return statistics.median(times) * 1e6


@contextmanager
def datasources(servers: Servers, *, driver: str = "psycopg", marked: str = "") -> Iterator[list[txpool.DataSource]]:
    """A datasource for each database; all prepare but `marked`."""
    with ExitStack() as stack:
        found = [
            txpool.DataSource(
                name=name,
                driver=driver,
                mode="cmr" if name == marked else "xa",
                url=server.url(name),
                password=server.password,
                pool_max_size=max(THREADS),
            )
            for name, server in servers.items()
        ]
        for datasource in found:
            stack.callback(datasource.close)
        yield found


@contextmanager
def by_hand(servers: Servers, place: Place, *, messages: bool = False) -> Iterator[list[Callable[[], None]]]:
    """For each thread the transaction by hand, with connections of its own; `messages` are txpool's, bare."""
    databases = [(server.url(name), server.password) for name, server in servers.items()]
    with ExitStack() as stack:
        workers = [
            transactions.by_hand(place.driver, databases, place.folder, row, messages=messages)
            for row in range(max(THREADS))
        ]
        for worker in workers:
            stack.callback(worker.close)
        yield [worker.transaction for worker in workers]


def with_txpool(sources: Sequence[txpool.DataSource]) -> list[Callable[[], None]]:
    """For each thread the transaction with txpool; they share the pools."""
    return [transactions.with_txpool(sources, row) for row in range(max(THREADS))]


def throughput(workers: Sequence[Callable[[], None]], threads: int, transactions: int = TRANSACTIONS) -> float:
    """Transactions a second, from so many threads with a worker each."""
    each = transactions // threads
    started: list[float] = []
    start = threading.Barrier(threads, action=lambda: started.append(time.perf_counter()))

    def work(transaction: Callable[[], None]) -> None:
        start.wait()
        for _ in range(each):
            transaction()

    running = [threading.Thread(target=work, args=(worker,)) for worker in workers[:threads]]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return threads * each / (time.perf_counter() - started[0])


assert max(THREADS) <= ROWS
