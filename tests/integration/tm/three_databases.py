"""Two PostgreSQL databases and a marked SQLite file, for one transaction over all three."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import txpool

if TYPE_CHECKING:
    from tests.conftest import Databases


@dataclass
class ThreeDatabases:
    """Three databases, each with a table t, and their datasources."""

    databases: Databases
    one: txpool.DataSource
    two: txpool.DataSource
    ledger: txpool.DataSource
    folder: Path

    def insert(self, *datasources: txpool.DataSource, value: int = 1) -> None:
        for datasource in datasources:
            with closing(datasource.connect()) as connection:
                connection.cursor().execute(f"insert into t values ({value})")

    def backend(self, datasource: txpool.DataSource) -> int:
        """The server process of its connection in the ambient transaction."""
        with closing(datasource.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("select pg_backend_pid()")
            return int(cursor.fetchone()[0])

    @property
    def held(self) -> tuple[int, int, int]:
        """How many rows each database holds, asked past txpool."""
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            in_ledger = ledger.execute("select count(*) from t").fetchone()[0]
        in_one, in_two = (self.databases.rows(name, "select count(*) from t")[0][0] for name in ("one", "two"))
        return in_one, in_two, in_ledger

    @property
    def marks(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            return [xid for (xid,) in ledger.execute("select xid from xids where xid <> 'txp1:identity'")]
