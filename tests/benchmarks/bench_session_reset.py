"""What it costs to reset a session when it is given back. Run by hand:

    python tests/benchmarks/bench_session_reset.py

The same transaction over one embedded PostgreSQL, in turn: with the server's own abs(), after which the session goes on
as it is; with a function of the user's that does the same, after which it is reset; and with an SQL text of 8,000
characters, which nobody searches. Beside them abs() with pool.reset = always. The times are medians; what a reset takes
in the server alone, without a network in between, is the difference.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import psycopg

from tests.benchmarks.report import print_table
from txpool.datasource import DataSource
from txpool.demo.server import EmbeddedPostgres

LOOPS, ROUNDS = 300, 11
_LONG = "select abs(-1)" + " " * 8000
_CASES = {
    "abs()": ("auto", "select abs(-1)"),
    "a function of the user's": ("auto", "select mine(-1)"),
    "abs(), in a long text": ("auto", _LONG),
    "abs(), pool.reset = always": ("always", "select abs(-1)"),
}


def microseconds(transaction: Callable[[], None]) -> float:
    started = time.perf_counter()
    for _ in range(LOOPS):
        transaction()
    return (time.perf_counter() - started) / LOOPS * 1e6


def transaction_of(source: DataSource, statement: str) -> Callable[[], None]:
    def run() -> None:
        with source.connect() as connection:
            connection.cursor().execute(statement.encode()).fetchall()

    return run


def main() -> None:
    with EmbeddedPostgres() as server, ExitStack() as stack:
        with psycopg.connect(server.dsn("one")) as session:
            session.execute("create function mine(integer) returns integer language sql as 'select abs($1)'")
        work = {}
        for name, (reset, statement) in _CASES.items():
            source = stack.enter_context(
                DataSource("one", driver="psycopg", url=server.url("one"), password=server.password, pool_reset=reset)
            )
            work[name] = transaction_of(source, statement)
            microseconds(work[name])
        times: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(ROUNDS):
            for name, transaction in work.items():
                times[name].append(microseconds(transaction))
    rows = [
        [name, f"{statistics.median(each):.0f}", f"{min(each):.0f} to {max(each):.0f}"] for name, each in times.items()
    ]
    print_table(f"{ROUNDS} rounds of {LOOPS}", ["statement", "µs", "of the rounds"], rows)


if __name__ == "__main__":
    main()
