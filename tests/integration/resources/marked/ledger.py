"""A marked datasource on PostgreSQL or SQLite, branches in it, and what its tables say."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txpool import failpoints
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import BranchRecord
from txpool.resources.driver.making import make_driver
from txpool.resources.driver.marks import IDENTITY
from txpool.resources.marked.branch import MarkedTransaction
from txpool.resources.marked.cleanup import CleanupQueue
from txpool.resources.marked.xids import Xids
from txpool.xid import make_gtrid, make_xid, new_incarnation

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.support.mysql import MySQLServer

INCARNATION = new_incarnation()
numbers = itertools.count()


def new_gtrid(node: str = "tests") -> str:
    return make_gtrid(node, INCARNATION, next(numbers))


def others(gtrid: str) -> list[BranchRecord]:
    xid = make_xid(gtrid, 0, "two", decider="ledger")
    return [BranchRecord(xid, "two", "1/two", {"note": 'it\'s \\ "quoted" ; -- %s ?'})]


class Ledger:
    """A marked datasource with a table of work, and branches in it."""

    def __init__(self, settings: DataSourceSettings, query_rows: Callable[[str], list[tuple[Any, ...]]]) -> None:
        self.driver = make_driver(settings)
        self.sqlite = settings.driver == "sqlite3"
        #: MariaDB or MySQL, which check a constraint at the statement, and never at COMMIT.
        self.mysql = settings.driver == "pymysql"
        self.query_rows = query_rows
        self.xids = Xids("ledger", self.driver, lock_timeout=0.3)
        self.cleanup = CleanupQueue(self.xids, batch_size=3)
        self.raws: list[Any] = []
        deferred = "" if self.mysql else " references parent (id) deferrable initially deferred"
        with closing(self.connect()) as raw:
            raw.execute("create table parent (id integer primary key)")
            raw.execute(f"create table work (id integer, parent integer{deferred})")
            raw.commit()

    def require_deferred_constraints(self) -> None:
        """Only where the database has them can a test make it refuse a COMMIT."""
        if self.mysql:
            pytest.skip("MariaDB and MySQL check no constraint at COMMIT")

    def connect(self) -> Any:
        """A raw connection, which executes by itself: PyMySQL's does not."""
        raw: Any = self.driver.connect()
        if self.mysql:
            raw.execute = partial(self.driver.execute, raw)
        return raw

    def branch(self, statement: str | None = "insert into work values (1, null)") -> MarkedTransaction:
        raw = self.connect()
        self.raws.append(raw)
        branch = MarkedTransaction("ledger", self.driver, raw, xids=self.xids, cleanup=self.cleanup)
        if statement is not None:
            if self.sqlite:
                raw.execute("pragma foreign_keys = on")
            self.driver.begin(raw)
            raw.execute(statement)
        return branch

    @property
    def raw(self) -> Any:
        return self.raws[-1]

    def marked(self) -> tuple[MarkedTransaction, str]:
        branch, gtrid = self.branch(), new_gtrid()
        branch.mark(gtrid, others(gtrid))
        return branch, gtrid

    def decided(self) -> tuple[MarkedTransaction, str]:
        branch, gtrid = self.marked()
        branch.record(gtrid, others(gtrid))
        return branch, gtrid

    def write(self, statement: str) -> None:
        """By hand, past all that is known of the table."""
        with closing(self.connect()) as raw:
            raw.execute(statement)
            raw.commit()

    def work(self) -> int:
        return len(self.query_rows("select id from work"))

    def rows(self) -> dict[str, str]:
        """What the table says, by key."""
        return {
            str(key): str(kind)
            for key, kind in self.query_rows(f"select xid, kind from xids where xid <> '{IDENTITY}'")
        }


@contextmanager
def opened(kind: str, tmp_path: Path, request: pytest.FixtureRequest, journal: str = "wal") -> Iterator[Ledger]:
    if kind == "sqlite":
        path = tmp_path / "ledger.db"
        with closing(sqlite3.connect(path)) as first:
            first.execute(f"pragma journal_mode = {journal}")

        def query_rows(query: str) -> list[tuple[Any, ...]]:
            with closing(sqlite3.connect(path)) as reader:
                return reader.execute(query).fetchall()

        settings = DataSourceSettings.load(
            name="ledger", driver="sqlite3", mode="cmr", url=f"sqlite:///{path}", driver_timeout="0.3"
        )
    elif kind in ("mariadb", "mysql8"):
        server: MySQLServer = request.getfixturevalue(kind)
        server.empty()

        def query_rows(query: str) -> list[tuple[Any, ...]]:
            return server.execute(query, database="one")

        settings = DataSourceSettings.load(
            name="ledger", driver="pymysql", mode="cmr", url=server.url("one"), password=Secret(server.password)
        )
    else:
        databases: Databases = request.getfixturevalue("databases")

        def query_rows(query: str) -> list[tuple[Any, ...]]:
            return databases.rows("one", query)

        password = Secret(databases.server.password)
        settings = DataSourceSettings.load(
            name="ledger", driver="psycopg", mode="cmr", url=databases.url("one"), password=password
        )
    ledger = Ledger(settings, query_rows)
    yield ledger
    failpoints.disarm()
    for raw in ledger.raws:
        ledger.driver.close(raw)
