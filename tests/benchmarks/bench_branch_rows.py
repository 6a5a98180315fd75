"""What `xa.evidence = row` costs: transactions over two databases with a row for each branch, and without.

In turn, in MariaDB and in PostgreSQL; the deletion of the rows is a part of it. Times, and the client's processor time.

    python tests/benchmarks/bench_branch_rows.py [ROUNDS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.report import compare
from tests.support.mysql import MySQLServer, mariadb_program
from txpool.demo.server import EmbeddedPostgres
from txpool.resources.marked.branch_rows import BranchRows

TRANSACTIONS = 500  # a batch of deletions
DATABASES = ("one", "two")
EVIDENCE = {"xa.evidence = server": "server", "xa.evidence = row": "row"}


def _spent(sources: list[txpool.DataSource], clock: str) -> float:
    """Milliseconds for a transaction, by the wall's clock or the process's."""
    now = time.process_time if clock == "process" else time.perf_counter
    began = now()
    for _ in range(TRANSACTIONS):
        with txpool.transaction():
            for source in sources:
                source.connect().cursor().execute("update landed set n = n + 1")
    return (now() - began) * 1000 / TRANSACTIONS


def _contest(server: EmbeddedPostgres | MySQLServer, driver: str, rounds: int) -> None:
    with ExitStack() as stack:
        ways = {}
        for way, evidence in EVIDENCE.items():
            options = {"driver": driver, "password": server.password, "xa_evidence": evidence}
            ways[way] = [
                stack.enter_context(txpool.DataSource(f"{name}-{evidence}", url=server.url(name), **options))
                for name in DATABASES
            ]
        for source in ways["xa.evidence = row"]:
            BranchRows(source.name, source.driver_adapter, source.settings.xa_evidence_table).create()
        for source in ways["xa.evidence = server"]:
            with source.connect() as connection:
                cursor = connection.cursor()
                cursor.execute("create table landed (n int)")
                cursor.execute("insert into landed values (0)")
                connection.commit()
        for clock in ("wall", "process"):
            compare(
                f"{TRANSACTIONS} transactions over two databases, {driver}, {clock} clock",
                {way: partial(_spent, sources, clock) for way, sources in ways.items()},
                rounds=rounds,
                unit="ms",
            )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    program = mariadb_program()
    if program is None:
        sys.exit("it needs MariaDB: apt-get install mariadb-server")
    with tempfile.TemporaryDirectory() as folder:
        txpool.configure(node_name="bench", log_url=f"sqlite:///{folder}/log", log_create=True)
        with MySQLServer(program) as mariadb:
            _contest(mariadb, "pymysql", rounds)
        with EmbeddedPostgres(settings={"max_prepared_transactions": "20"}) as postgres:
            _contest(postgres, "psycopg", rounds)
        txpool.configure()


if __name__ == "__main__":
    main()
