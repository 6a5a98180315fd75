"""What sqlite3 costs through a handle: execute and fetch, plain and inside a transaction, beside the bare driver.

python tests/benchmarks/bench_sqlite.py [--instructions]

It measures processor time, since nothing here waits. With --instructions it counts those too, by valgrind's callgrind:
that ratio does not depend on what else the machine does, and takes some minutes.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import txpool
from tests.benchmarks.report import compare, print_table

ROWS, LOOPS, ROUNDS = 1000, 20, 15
STEPS = 3
_ONE, _ALL = "select v from t where id = ?", "select id, v from t"


def execute(cursor: Any, connection: Any) -> None:
    for number in range(ROWS):
        cursor.execute(_ONE, (number,))


def execute_and_fetchone(cursor: Any, connection: Any) -> None:
    for number in range(ROWS):
        cursor.execute(_ONE, (number,))
        cursor.fetchone()


def execute_on_connection(cursor: Any, connection: Any) -> None:
    for number in range(ROWS):
        connection.execute(_ONE, (number,)).fetchone()


def fetchone(cursor: Any, connection: Any) -> None:
    cursor.execute(_ALL)
    while cursor.fetchone() is not None:
        pass


def fetchmany(cursor: Any, connection: Any) -> None:
    cursor.execute(_ALL)
    while cursor.fetchmany(10):
        pass


def fetchall(cursor: Any, connection: Any) -> None:
    cursor.execute(_ALL)
    cursor.fetchall()


def iterate(cursor: Any, connection: Any) -> None:
    cursor.execute(_ALL)
    for _ in cursor:
        pass


#: What is measured, and what it is counted by: a statement, or a row.
WORK: dict[str, Callable[[Any, Any], None]] = {
    "execute": execute,
    "execute and fetchone": execute_and_fetchone,
    "connection.execute and fetchone": execute_on_connection,
    "fetchone": fetchone,
    "fetchmany(10)": fetchmany,
    "fetchall": fetchall,
    "iteration": iterate,
}


class Sides:
    """The bare driver and the handle, over one file; `enlisted` puts both into a transaction."""

    def __init__(self, folder: str, *, enlisted: bool = False) -> None:
        path = f"{folder}/{'enlisted' if enlisted else 'plain'}.db"
        with sqlite3.connect(path) as bare:
            bare.execute("create table if not exists t (id integer primary key, v text)")
            bare.executemany("insert or replace into t values (?, ?)", [(n, f"value {n}") for n in range(ROWS)])
        if enlisted:
            bare.execute("begin")
        self.bare = bare
        self.source = txpool.DataSource(name="lite", driver="sqlite3", mode="local", url=f"sqlite:///{path}")
        if enlisted:
            txpool.begin(timeout=600)
        self.ours = self.source.connect()

    def side(self, name: str) -> Any:
        return self.bare if name == "sqlite3" else self.ours

    def processor_time(self, name: str, work: Callable[[Any, Any], None]) -> float:
        connection = self.side(name)
        cursor = connection.cursor()
        started = time.thread_time_ns()
        for _ in range(LOOPS):
            work(cursor, connection)
        return (time.thread_time_ns() - started) / (LOOPS * ROWS)

    def close(self) -> None:
        if txpool.current() is not None:
            txpool.rollback()
        self.ours.close()
        self.source.close()
        self.bare.close()


def times() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for enlisted in (False, True):
            sides = Sides(folder, enlisted=enlisted)
            for name, work in WORK.items():
                compare(
                    f"{name}, {'inside a transaction' if enlisted else 'plain'}",
                    {side: partial(sides.processor_time, side, work) for side in ("sqlite3", "txpool")},
                    rounds=ROUNDS,
                    unit="ns of processor time",
                    bound="" if enlisted else "1.15 or less",
                )
            sides.close()


def loop(name: str, side: str, repeats: int, enlisted: bool) -> None:
    """What runs under callgrind."""
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(folder, enlisted=enlisted)
        connection = sides.side(side)
        cursor = connection.cursor()
        for _ in range(repeats):
            WORK[name](cursor, connection)
        sides.close()


def _instructions(name: str, side: str, enlisted: bool) -> float:
    """Of one statement or row: the difference between many and few, so that starting Python does not count."""

    def count(repeats: int) -> int:
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, __file__]
        command += ["--loop", name, side, str(repeats), "enlisted" if enlisted else "plain"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"Collected : (\d+)", done.stderr)
        assert found is not None
        return int(found[1])

    return (count(1 + STEPS) - count(1)) / (STEPS * ROWS)


def instructions() -> None:
    rows = []
    for enlisted in (False, True):
        for name in WORK:
            bare, ours = (_instructions(name, side, enlisted) for side in ("sqlite3", "txpool"))
            where = "inside a transaction" if enlisted else "plain"
            rows.append([f"{name}, {where}", f"{bare:,.0f}", f"{ours:,.0f}", f"{ours / bare:.2f}"])
    print_table("instructions", ["", "sqlite3", "txpool", "ratio"], rows)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--loop"]:
        _, name, side, repeats, where = arguments
        loop(name, side, int(repeats), where == "enlisted")
        return
    times()
    if "--instructions" in arguments:
        if shutil.which("valgrind") is None:
            raise SystemExit("valgrind is not installed")
        instructions()


if __name__ == "__main__":
    main(sys.argv[1:])
