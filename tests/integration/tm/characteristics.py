"""Datasources for tests of isolation levels and read-only, and what a database says of them."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import txpool

if TYPE_CHECKING:
    from tests.conftest import Databases


SHOW: LiteralString = "select current_setting('transaction_isolation'), current_setting('transaction_read_only')"


LEVELS = ("read-uncommitted", "read-committed", "repeatable-read", "serializable")


class Sources:
    """Datasources over PostgreSQL's databases `one` and `two`, and over one file of SQLite's."""

    def __init__(self, databases: Databases, folder: Path) -> None:
        self.databases = databases
        self.file = folder / "lite.db"
        self._opened = ExitStack()
        for name in ("one", "two"):
            databases.execute(name, "create table t (id integer primary key, n integer)")
            databases.execute(name, "insert into t values (1, 0), (2, 0)")
        with closing(sqlite3.connect(self.file)) as raw:
            raw.executescript("create table t (id integer primary key, n integer); insert into t values (1, 0), (2, 0)")

    def open(self, name: str, at: str = "", **options: Any) -> txpool.DataSource:
        options = {"driver": "psycopg", "password": self.databases.server.password, "pool_max_size": 1, **options}
        return self._opened.enter_context(txpool.DataSource(name=name, url=self.databases.url(at or name), **options))

    def open_lite(self, mode: str = "local", **options: Any) -> txpool.DataSource:
        url = f"sqlite:///{self.file}"
        source = txpool.DataSource(name="lite", driver="sqlite3", mode=mode, url=url, pool_max_size=1, **options)
        if mode == "cmr":
            source.xids_table().create()  # type: ignore[attr-defined]
        return self._opened.enter_context(source)

    def close(self) -> None:
        self._opened.close()


def ask(source: txpool.DataSource, query: str = SHOW) -> Any:
    with closing(source.connect()) as connection:
        return connection.cursor().execute(query).fetchone()


def write(source: txpool.DataSource, number: int = 7) -> None:
    with closing(source.connect()) as connection:
        connection.cursor().execute(f"update t set n = {number} where id = 1")
