"""Rows over JDBC beside psycopg, on one PostgreSQL server: 100,000 rows of three columns inserted, and fetched.

python tests/benchmarks/bench_jdbc_rows.py

Both sides insert by executemany() and fetch by fetchall(). The JDBC url has reWriteBatchedInserts, which users set, and
without which a batch is one INSERT for each row. A statement that fetches one row is measured too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import psycopg

from tests.benchmarks.report import compare
from tests.support.jdbc import find_jars, postgresql
from txpool.demo.server import EmbeddedPostgres
from txpool.resources.jdbc.dbapi.connection import JdbcConnection
from txpool.resources.jdbc.jvm import jvm

COUNT, STATEMENTS, ROUNDS = 100_000, 2_000, 9
_CREATE = "create table t (i int primary key, s text, n numeric(12, 2))"
_FETCH = "select i, s, n from t"


class Side:
    """A connection of one driver, and how it writes a parameter."""

    def __init__(self, connection: Any, mark: str) -> None:
        self._connection = connection
        self._mark = mark
        self._rows = [(i, f"value {i}", f"{i}.25") for i in range(COUNT)]

    def insert(self) -> float:
        cursor = self._connection.cursor()
        cursor.execute("truncate t")
        statement = f"insert into t values ({self._mark}, {self._mark}, cast({self._mark} as numeric))"
        return _timed(lambda: cursor.executemany(statement, self._rows), self._connection.commit)

    def fetch(self) -> float:
        found: list[Any] = []
        cursor = self._connection.cursor()
        taken = _timed(lambda: cursor.execute(_FETCH), lambda: found.extend(cursor.fetchall()))
        self._connection.commit()
        assert len(found) == COUNT
        return taken

    def statements(self) -> float:
        cursor = self._connection.cursor()
        statement = f"select i, s, n from t where i = {self._mark}"

        def work() -> None:
            for number in range(STATEMENTS):
                cursor.execute(statement, (number,))
                assert cursor.fetchone()[0] == number

        taken = _timed(work)
        self._connection.commit()
        return taken / STATEMENTS * 1e6


def _timed(*work: Callable[[], object]) -> float:
    started = time.perf_counter()
    for each in work:
        each()
    return time.perf_counter() - started


def main() -> None:
    jars = find_jars()
    if jars is None:
        raise SystemExit("missing: Java drivers: apt-get install maven default-jdk-headless, which bring them")
    with EmbeddedPostgres() as server:
        source = postgresql(jars, server).datasource(ReWriteBatchedInserts=True)
        with psycopg.connect(server.dsn("one")) as bare, JdbcConnection(source.getConnection()) as ours:
            bare.execute(_CREATE)
            bare.commit()
            sides = {"psycopg": Side(bare, "%s"), f"txpool over JDBC {ours.version}": Side(ours, "?")}
            java = jvm.started().load("java.lang.System").getProperty("java.version")
            driver = jvm.started(jars.postgresql).load("org.postgresql.util.DriverInfo").DRIVER_FULL_NAME
            print(f"Java {java}, {driver}, PostgreSQL {ours.version}")
            for title, method, unit, bound in (
                (f"{COUNT:,} rows inserted", "insert", "s", "1.2 or less"),
                (f"{COUNT:,} rows fetched", "fetch", "s", "3 or less"),
                ("a statement with one parameter that fetches one row", "statements", "µs", ""),
            ):
                work = {name: partial(getattr(side, method)) for name, side in sides.items()}
                compare(title, work, rounds=ROUNDS, unit=unit, bound=bound)


if __name__ == "__main__":
    main()
