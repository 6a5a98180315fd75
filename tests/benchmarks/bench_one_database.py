"""One row in one database, inside a transaction, against a bare psycopg connection that executes and commits.

python tests/benchmarks/bench_one_database.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import compare
from txpool.datasource import DataSource
from txpool.demo.server import EmbeddedPostgres
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import configure

TRANSACTIONS = 400
INSERT = "insert into t (a) values (%s)"


def _microseconds(execute: Callable[[], None]) -> float:
    started = time.perf_counter()
    for _ in range(TRANSACTIONS):
        execute()
    return (time.perf_counter() - started) / TRANSACTIONS * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres() as server:
        configure(node_name="bench", log_url=f"sqlite:///{folder}/txlog", log_create=True)
        options = {"driver": "psycopg", "url": server.url("one"), "password": server.password}
        with psycopg.connect(server.dsn("one")) as bare, DataSource(name="one", **options) as datasource:
            bare.execute("create table t (id bigserial primary key, a integer)")
            bare.commit()

            def by_hand() -> None:
                bare.execute(INSERT, (1,))
                bare.commit()

            def plain() -> None:
                with datasource.connect() as connection:
                    connection.execute(INSERT, (1,))

            def ours() -> None:
                with transaction(), datasource.connect() as connection:
                    connection.execute(INSERT, (1,))

            compare(
                "one row in one database",
                {
                    "psycopg": lambda: _microseconds(by_hand),
                    "txpool, no transaction": lambda: _microseconds(plain),
                    "txpool.transaction()": lambda: _microseconds(ours),
                },
                rounds=15,
                unit="µs",
                bound="1.10 or less",
                transactions=TRANSACTIONS,
                servers=[server],
            )


if __name__ == "__main__":
    main()
