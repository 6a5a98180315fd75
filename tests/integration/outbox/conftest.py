"""An outbox in each kind of database, and a second database of that kind for what is delivered."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import txpool
from txpool import DataSource, Outbox
from txpool.datasource.registry import opened
from txpool.outbox import Message


class Place:
    """The databases `orders`, with an outbox, and `ledger`, with a table of what was delivered."""

    #: SQL for how many statements wait for a lock.
    waiting = ""

    def __init__(self, kind: str, options: dict[str, dict[str, Any]], connect: Any) -> None:
        self.kind = kind
        self._options, self._connect = options, connect
        self._numbers = itertools.count()
        self.opened: list[DataSource] = []
        self.orders, self.ledger = self.datasource("orders"), self.datasource("ledger")
        self.sql("ledger", "create table applied (number integer, payload varchar(100))")
        self.outbox = Outbox(self.orders)
        self.outbox.create()

    def datasource(self, name: str, **options: Any) -> DataSource:
        self.opened.append(DataSource(name=name, **self._options[name] | options))
        return self.opened[-1]

    def plain(self, name: str) -> closing[Any]:
        """A plain connection of the driver's own, which commits each statement."""
        return closing(self._connect(name))

    def sql(self, name: str, statement: str) -> list[Any]:
        """Execute over a plain connection."""
        with self.plain(name) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def send(self, *payloads: bytes | str, key: str | None = None) -> list[str]:
        with txpool.transaction():
            return [self.outbox.send(each, key=key) for each in payloads]

    def apply(self, message: Message) -> None:
        """Write what is delivered into `ledger`, in the ambient transaction."""
        with closing(self.ledger.connect()) as connection:
            mark = "?" if self.kind == "sqlite" else "%s"
            connection.cursor().execute(
                f"insert into applied values ({mark}, {mark})", [next(self._numbers), message.payload]
            )

    def applied(self) -> list[str]:
        return [payload for (payload,) in self.sql("ledger", "select payload from applied order by number")]

    def left(self) -> int:
        state = self.outbox.state()
        return state.waiting + state.parked


WAITING = {
    "postgresql": "select count(*) from pg_stat_activity where wait_event_type = 'Lock'",
    "mariadb": "show global status like 'Innodb_row_lock_current_waits'",
}


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    for each in opened():  # of earlier tests: a relay would wait for an answer of servers that are gone
        each.close()
    txpool.configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    databases = {"orders": "one", "ledger": "two"}
    connect: Any
    if request.param == "postgresql":
        them = request.getfixturevalue("databases")
        options = {
            name: {"driver": "psycopg", "url": them.url(each), "password": them.server.password}
            for name, each in databases.items()
        }

        def connect(name: str) -> Any:
            return psycopg.connect(them.dsn(databases[name]), autocommit=True)
    elif request.param == "mariadb":
        server = request.getfixturevalue("mariadb")
        server.empty()
        options = {
            name: {"driver": "pymysql", "url": server.url(each), "password": server.password}
            for name, each in databases.items()
        }

        def connect(name: str) -> Any:
            return server.connect(databases[name])
    else:
        options = {
            name: {"driver": "sqlite3", "mode": "cmr", "url": f"sqlite:///{tmp_path}/orders.db"} for name in databases
        }

        def connect(_: str) -> Any:
            return sqlite3.connect(tmp_path / "orders.db", isolation_level=None, timeout=60)

    place = Place(request.param, options, connect)
    if request.param == "sqlite":
        place.ledger = place.orders  # the second marked database would be one too many
        place.orders.xids_table().create()  # type: ignore[attr-defined]
    place.waiting = WAITING.get(request.param, "")
    try:
        yield place
    finally:
        for each in place.opened:
            each.close()
        txpool.configure()
