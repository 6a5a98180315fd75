"""One transaction over several PostgreSQL databases, by hand and with txpool: what the benchmarks compare.

By hand means: one row in each database, PREPARE in each, the decision appended to a file and fdatasync'ed, COMMIT
PREPARED in each, one after another, by psycopg's own tpc_*(), which cost less than the same as SQL. Over one database
it is an execute and a commit. It has connections and a file of its own: it waits for nobody.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import psycopg

import txpool

#: The table's rows: transactions with the same row wait for each other.
ROWS = 100
TABLE = f"""
    create table t (id integer primary key, a integer);
    insert into t select i, 0 from generate_series(0, {ROWS - 1}) i
"""
UPDATE = "update t set a = a + 1 where id = %s"

_numbers = itertools.count()


class ByHand:
    """What a careful person writes without a transaction manager: correct as long as nothing fails."""

    def __init__(self, dsns: Iterable[str], folder: Path, row: int = 0) -> None:
        self._connections = [psycopg.connect(dsn) for dsn in dsns]
        self._log = os.open(folder / f"by-hand-{next(_numbers)}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._row = (row,)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        os.close(self._log)

    def transaction(self) -> None:
        if len(self._connections) == 1:
            self._connections[0].execute(UPDATE, self._row)
            self._connections[0].commit()
            return
        gid = f"by-hand-{next(_numbers)}"
        for number, connection in enumerate(self._connections):
            connection.tpc_begin(connection.xid(1, gid, str(number)))
            connection.execute(UPDATE, self._row)
        for connection in self._connections:
            connection.tpc_prepare()
        os.write(self._log, f"{gid} commits\n".encode())
        os.fdatasync(self._log)
        for connection in self._connections:
            connection.tpc_commit()


class Txpool:
    """The same with txpool."""

    def __init__(self, datasources: Sequence[txpool.DataSource], row: int = 0) -> None:
        self._datasources = datasources
        self._row = (row,)

    def transaction(self) -> None:
        with txpool.transaction():
            for datasource in self._datasources:
                with datasource.connect() as connection:
                    connection.execute(UPDATE, self._row)
