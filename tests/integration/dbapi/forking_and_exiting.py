"""A process of its own: it forks within work on a SQLite file, and the child exits as any interpreter does.

Its arguments are the file and what it is within; it prints the rows that are committed in the end.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from typing import Any

from txpool.datasource import DataSource
from txpool.tm.demarcation.block import transaction


def fork() -> None:
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    os.waitpid(pid, 0)


def work(source: DataSource, within: str) -> None:
    """Insert a row, and fork before it is committed."""
    if within == "a transaction":
        with transaction():
            source.connect().cursor().execute("insert into t values (1)")
            fork()
        return
    with closing(source.connect()) as plain:
        connection: Any = plain
        if within == "a result":
            connection.isolation_level = None
            cursor = connection.execute("insert into t values (1) returning n")
            fork()
            assert cursor.fetchall() == [(1,)]
        else:
            connection.execute("insert into t values (1)")
            fork()
            connection.commit()


if __name__ == "__main__":
    file, journal, within = sys.argv[1:]
    with closing(sqlite3.connect(file)) as raw:
        raw.execute(f"pragma journal_mode = {journal}")
        raw.execute("create table t (n integer)")
    with DataSource(name="f", driver="sqlite3", mode="local", url=f"sqlite:///{file}") as source:
        work(source, within)
    with closing(sqlite3.connect(file)) as raw:
        print(raw.execute("select n from t").fetchall())
