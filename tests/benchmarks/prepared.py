"""Very many branches that are prepared: by hand, as a Spark driver has adopted them, and in doubt.

    python -m tests.benchmarks.prepared FOLDER NODE COUNT DATABASE...

prepares and decides so many transactions over the databases whose files and log are in the folder. It says so, and
dies without an end to them once its stdin has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.support.repository import ROOT
from txpool import DataSource
from txpool.log import open_log
from txpool.resources.base import BranchRecord
from txpool.resources.postgresql.session.identity import TIMELINE
from txpool.tm.transaction import Transaction
from txpool.xid import make_gtrid, make_xid

INSERT = "insert into t values (1)"
_PREPARERS = 4


def in_threads(work: Callable[[Sequence[int]], None], numbers: Sequence[int]) -> None:
    """Do the work for all numbers from a few threads, which flush together."""
    threads = [threading.Thread(target=work, args=(numbers[n::_PREPARERS],)) for n in range(_PREPARERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def prepare(dsns: Iterable[str], names: Callable[[int, int], str], numbers: Sequence[int]) -> dict[str, str]:
    """Prepare a transaction that has written in each database, for each number; by name, its transaction's id."""
    ids: dict[str, str] = {}
    for place, dsn in enumerate(dsns):
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number in numbers:
                name = names(number, place)
                connection.execute("begin")
                connection.execute(INSERT)
                (found,) = connection.execute("select pg_current_xact_id()::text").fetchone() or ("",)
                connection.execute(f"prepare transaction '{name}'")
                ids[name] = found
    return ids


def timeline(dsn: str) -> str:
    """The server's, which a branch's evidence has."""
    with psycopg.connect(dsn) as connection:
        return str((connection.execute(f"select {TIMELINE}").fetchone() or ("",))[0])


def prepared_records(
    gtrid: str, datasources: Sequence[DataSource], dsns: Sequence[str], each: int
) -> list[BranchRecord]:
    """Prepare so many branches of the transaction in each database, and return their records."""
    locations = [datasource.prepare_location() for datasource in datasources]
    timelines = [timeline(dsn) for dsn in dsns]
    xids = {
        (n, place): make_xid(gtrid, n * len(datasources) + place, datasource.name)
        for n in range(each)
        for place, datasource in enumerate(datasources)
    }
    ids: dict[str, str] = {}

    def work(numbers: Sequence[int]) -> None:
        ids.update(prepare(dsns, lambda number, place: xids[number, place].joined, numbers))

    in_threads(work, range(each))
    return [
        BranchRecord(
            xid,
            datasources[place].name,
            locations[place].identity,
            {"xid": ids[xid.joined], "timeline": timelines[place]},
        )
        for (_, place), xid in xids.items()
    ]


def adopt(transaction: Transaction, datasources: Sequence[DataSource], records: Iterable[BranchRecord]) -> None:
    """Let the transaction end these branches."""
    by_name = {datasource.name: datasource for datasource in datasources}
    branches = [by_name[record.datasource].prepared_branch(record, transaction.deadlines) for record in records]
    transaction.adopt(branches, late_branches=False)


def leave_in_doubt(folder: Path, node: str, databases: Sequence[str], count: int) -> None:
    """Leave so many transactions in doubt, prepared and decided by a process that is gone."""
    with holding_in_doubt(folder, node, databases, count):
        pass


@contextmanager
def holding_in_doubt(folder: Path, node: str, databases: Sequence[str], count: int) -> Iterator[None]:
    """The same; until the block ends, the process lives."""
    command = [sys.executable, "-m", "tests.benchmarks.prepared", str(folder), node, str(count), *databases]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"nothing is in doubt: exit code {process.wait()}")
        yield
        process.stdin.close()


def main(folder: Path, node: str, count: int, databases: Sequence[str]) -> None:
    datasources = [DataSource.from_properties(folder / f"{name}.properties") for name in databases]
    log = open_log(f"sqlite:///{folder}/txlog", node=node)
    locations = [datasource.prepare_location() for datasource in datasources]
    for location in locations:
        log.note_location(location)
    dsns = [psycopg.conninfo.make_conninfo(datasource.url) for datasource in datasources]
    its_timeline = timeline(dsns[0])
    gtrids = {number: make_gtrid(node, log.incarnation, number) for number in range(count)}
    xids = {(n, place): make_xid(gtrids[n], place, name) for n in gtrids for place, name in enumerate(databases)}

    def work(numbers: Sequence[int]) -> None:
        ids = prepare(dsns, lambda number, place: xids[number, place].joined, numbers)
        for number in numbers:
            records = [
                BranchRecord(
                    xids[number, place],
                    location.datasource,
                    location.identity,
                    {"xid": ids[xids[number, place].joined], "timeline": its_timeline},
                )
                for place, location in enumerate(locations)
            ]
            log.record(gtrids[number], records)

    in_threads(work, range(count))
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
