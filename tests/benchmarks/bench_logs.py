"""Decisions a second of a log in MariaDB and in MySQL, against one in PostgreSQL: recorded, and lazily forgotten.

python tests/benchmarks/bench_logs.py [ROUNDS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import compare
from tests.support.mysql import MySQLServer, mariadb_program, mysql_program
from txpool.config.secrets import Secret
from txpool.demo.server import EmbeddedPostgres
from txpool.log import SqlLog
from txpool.resources.base import BranchRecord
from txpool.resources.mysql.log import connecting
from txpool.xid import make_gtrid, make_xid

DECISIONS = 400
NODE = "bench"


def _microseconds(log: SqlLog, threads: int, numbers: count[int]) -> float:
    """The time of a decision, over so many threads at once."""

    def decide(decisions: int) -> None:
        for _ in range(decisions):
            gtrid = make_gtrid(NODE, log.incarnation, next(numbers))
            branches = [BranchRecord(make_xid(gtrid, each, "orders"), "orders", "7412/5") for each in (1, 2)]
            log.record(gtrid, branches)
            log.forget(gtrid)

    with ThreadPoolExecutor(threads) as apart:
        started = time.perf_counter()
        for each in [apart.submit(decide, DECISIONS // threads) for _ in range(threads)]:
            each.result()
        return (time.perf_counter() - started) / DECISIONS * 1e6


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        mariadb, mysql = mariadb_program(), mysql_program(folder)
        assert mariadb is not None
        assert mysql is not None
        servers = {
            "PostgreSQL": stack.enter_context(EmbeddedPostgres()),
            "MariaDB": stack.enter_context(MySQLServer(mariadb)),
            "MySQL": stack.enter_context(MySQLServer(mysql)),
        }
        logs: dict[str, SqlLog] = {}
        drivers = connecting.DRIVERS
        for name, server in servers.items():
            for driver in drivers if name != "PostgreSQL" else drivers[:1]:
                setattr(connecting, "DRIVERS", (driver,))  # noqa: B010 - a constant
                label = name if name == "PostgreSQL" else f"{name}, {driver[0].split('.')[-1].partition('_')[0]}"
                log = SqlLog(server.url("one"), node=NODE, create=True, password=Secret(server.password))
                logs[label] = stack.enter_context(closing(log))
        numbers = count(1)
        for threads in (1, 8):

            def measured(log: SqlLog, threads: int = threads) -> Callable[[], float]:
                return lambda: _microseconds(log, threads, numbers)

            compare(
                f"a decision from {threads} threads" if threads > 1 else "a decision",
                {label: measured(log) for label, log in logs.items()},
                rounds=rounds,
                unit="µs",
                transactions=DECISIONS,
            )


if __name__ == "__main__":
    main()
