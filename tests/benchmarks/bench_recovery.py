"""What recovery costs: 10,000 branches in doubt, and a pass with nothing to do.

In doubt: as many transactions as half of these branches are prepared in two databases of one server and decided in the
log, and their process is gone. One scan commits them and deletes the decisions. A commit ends as many branches, which
one transaction has adopted, as a Spark driver's does. Both are measured against a bare loop of COMMIT PREPARED of as
many branches by libpq, over as many connections for each database as xa.phase-two-connections says: each has one
command on its way, and takes the next branch with each answer. A loop over one connection is shown beside it.

Nothing to do: a scan after 10^3 and after 10^6 transactions that the log, in memory, has recorded and forgotten, while
their process is alive.

    python tests/benchmarks/bench_recovery.py [--place disk|memory] [--branches N] [--connections N]
        [--only in-doubt|idle]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from recovery import RecoveryManager
from tests.benchmarks.prepared import adopt, in_threads, leave_in_doubt, prepare, prepared_records
from tests.benchmarks.report import compare, print_table
from tests.benchmarks.running import PLACES, Place, place_in, places
from txpool.demo.server import EmbeddedPostgres
from txpool.log import open_log
from txpool.log.base import DecisionLog
from txpool.resources.base import BranchRecord
from txpool.xid import make_gtrid, make_xid

BRANCHES = 10_000
DATABASES = ("one", "two")
FORGOTTEN = (1_000, 1_000_000)
NODE = "bench"
ROUNDS = 3


def _commit_by_hand(dsns: Sequence[str], name: Callable[[int, int], str], count: int, connections: int) -> None:
    """Commit the branches by libpq: each connection has one command on its way."""
    opened = [[psycopg.connect(dsn, autocommit=True) for _ in range(connections)] for dsn in dsns]
    lanes = [(place, connection.pgconn) for each in zip(*opened, strict=True) for place, connection in enumerate(each)]
    queues = [iter(range(count)) for _ in dsns]
    busy: deque[tuple[int, Any]] = deque()

    def send(place: int, pgconn: Any) -> None:
        number = next(queues[place], None)
        if number is not None:
            pgconn.send_query(f"commit prepared '{name(number, place)}'".encode())
            busy.append((place, pgconn))

    for lane in lanes:
        send(*lane)
    while busy:
        place, pgconn = busy.popleft()
        while (result := pgconn.get_result()) is not None:
            if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
                raise RuntimeError(result.error_message.decode())
        send(place, pgconn)
    for each in opened:
        for connection in each:
            connection.close()


class InDoubt:
    """Two databases of one server, and the configuration of recovery."""

    def __init__(self, place: Place, server: EmbeddedPostgres, branches: int, connections: int) -> None:
        self._folder = place.folder
        self._server = server
        self._count = branches // len(DATABASES)
        self._rounds = iter(range(1_000_000))
        for name in DATABASES:
            with psycopg.connect(server.dsn(name)) as connection:
                connection.execute("create table t (a integer)")
            limit = f"xa.phase-two-connections = {connections}"
            self._write(name, "driver = psycopg", "mode = xa", f"url = {server.url(name)}", limit)
        self._write(
            "recovery",
            f"node.name = {NODE}",
            f"log.url = sqlite:///{place.folder}/txlog",
            "datasources = one.properties, two.properties",
        )
        os.environ["PGPASSWORD"] = server.password
        open_log(f"sqlite:///{place.folder}/txlog", node=NODE, create=True).close()
        txpool.configure(node_name="driver", log_url=f"sqlite:///{place.folder}/driver-log", log_create=True)
        self._datasources = [
            txpool.DataSource.from_properties(place.folder / f"{name}.properties") for name in DATABASES
        ]

    def _write(self, name: str, *lines: str) -> None:
        (self._folder / f"{name}.properties").write_text("\n".join([*lines, ""]))

    def close(self) -> None:
        """Close the datasources of the commits."""
        for datasource in self._datasources:
            datasource.close()

    def _rows(self) -> int:
        """How many rows both databases have; it also settles what the last round has left to vacuum and to write."""
        rows = 0
        for name in DATABASES:
            with psycopg.connect(self._server.dsn(name), autocommit=True) as connection:
                rows += (connection.execute("select count(*) from t").fetchone() or (0,))[0]
                connection.execute("truncate t")
                connection.execute("checkpoint")
        return rows

    def _ended(self, seconds: float) -> float:
        if self._rows() != self._count * len(DATABASES):
            raise RuntimeError("not all branches were committed")
        return seconds

    def by_hand(self, connections: int) -> float:
        """The seconds of a bare loop of COMMIT PREPARED, over so many connections for each database."""
        this = next(self._rounds)
        dsns = [self._server.dsn(name) for name in DATABASES]

        def name(number: int, place: int) -> str:
            return f"by-hand-{this}-{number}-{place}"

        def work(numbers: Sequence[int]) -> None:
            prepare(dsns, name, numbers)

        in_threads(work, range(self._count))
        started = time.perf_counter()
        _commit_by_hand(dsns, name, self._count, connections)
        return self._ended(time.perf_counter() - started)

    def committed(self) -> float:
        """The seconds in which a transaction commits that has adopted them."""
        transaction = txpool.begin()
        dsns = [self._server.dsn(name) for name in DATABASES]
        records = prepared_records(transaction.gtrid, self._datasources, dsns, self._count)
        adopt(transaction, self._datasources, records)
        started = time.perf_counter()
        transaction.commit()
        return self._ended(time.perf_counter() - started)

    def recovered(self) -> float:
        """The seconds of one scan."""
        leave_in_doubt(self._folder, NODE, DATABASES, self._count)
        manager = RecoveryManager(self._folder / "recovery.properties")
        started = time.perf_counter()
        report = manager.scan()
        seconds = time.perf_counter() - started
        if report.pending or report.errors or len(report.forgotten) != self._count:
            raise RuntimeError(f"recovery has left something: {report}")
        return self._ended(seconds)


def _in_doubt(place: Place, branches: int, connections: int) -> None:
    settings = {"max_prepared_transactions": str(branches + 100), "max_wal_size": "8GB"}
    with EmbeddedPostgres(place.folder / "server", databases=DATABASES, settings=settings) as server:
        world = InDoubt(place, server, branches, connections)
        compare(
            f"{branches:,} branches; {place}",
            {
                f"by hand over {connections} connections": partial(world.by_hand, connections),
                "one commit": world.committed,
                "one scan": world.recovered,
                "by hand over one connection": partial(world.by_hand, 1),
            },
            rounds=ROUNDS,
            unit="s",
            bound="1.3 or less",
        )
        world.close()


@contextmanager
def _log_of(place: Place, forgotten: int) -> Iterator[DecisionLog]:
    """A log that has recorded and forgotten so many transactions, in use by this process."""
    url = f"sqlite:///{place.folder}/txlog-{forgotten}"
    log = open_log(url, node=NODE, create=True)
    xids = [make_xid(make_gtrid(NODE, log.incarnation, 0), n, name) for n, name in enumerate(DATABASES)]
    records = [BranchRecord(xid, xid.tag, "7390581437062345678/16384", {"xid": "12345"}) for xid in xids]
    for number in range(forgotten):
        gtrid = make_gtrid(NODE, log.incarnation, number)
        log.record(gtrid, records)
        log.forget(gtrid)
    yield log
    log.close()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _idle(place: Place) -> None:
    with EmbeddedPostgres(place.folder / "idle", databases=DATABASES) as server:
        datasources = [
            txpool.DataSource(name=name, driver="psycopg", mode="xa", url=server.url(name), password=server.password)
            for name in DATABASES
        ]
        (place.folder / "idle.properties").write_text(f"node.name = {NODE}\n")
        scans = {}
        sizes = []
        with _log_of(place, FORGOTTEN[0]) as few, _log_of(place, FORGOTTEN[1]) as many:
            for forgotten, log in zip(FORGOTTEN, (few, many), strict=True):
                manager = RecoveryManager(place.folder / "idle.properties", log=log, datasources=datasources)
                scans[f"after {forgotten:,} transactions"] = _milliseconds(manager)
                sizes.append(
                    [f"{forgotten:,}", f"{len(log.decisions())}", f"{_size(place.folder / f'txlog-{forgotten}'):,}"]
                )
            print_table("what the log keeps", ["transactions", "decisions", "bytes"], sizes)
            compare(f"a scan with nothing to do; {place}", scans, rounds=15, unit="ms", bound="1.0")


def _milliseconds(manager: RecoveryManager) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        for _ in range(10):
            report = manager.scan()
            if str(report) != "nothing to do":
                raise RuntimeError(f"there was something to do: {report}")
        return (time.perf_counter() - started) * 100

    return measure


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--place",
        choices=PLACES,
        help="where server and log stand for the branches in doubt; both by default",
    )
    arguments.add_argument("--branches", type=int, default=BRANCHES)
    arguments.add_argument("--connections", type=int, default=8, help="of each database; 8 by default")
    arguments.add_argument("--only", choices=["in-doubt", "idle"], help="both by default")
    options = arguments.parse_args()
    if options.only != "idle":
        for place in places(options.place):
            _in_doubt(place, options.branches, options.connections)
    if options.only != "in-doubt":
        with place_in("memory") as place:  # on a disk, to record as many decisions would take a while
            _idle(place)


if __name__ == "__main__":
    main()
