"""One transaction over several databases, by hand and with txpool: what the benchmarks compare.

By hand means: one row in each database, a prepare in each, the decision appended to a file and fdatasync'ed, a commit
in each, one after another. With psycopg that is its own tpc_*(), which cost less than the same as SQL; with PyMySQL and
mysqlclient it is XA statements. Over one database it is an execute and a commit. By hand has connections and a file of
its own: it waits for nobody.
"""

from __future__ import annotations

import importlib
import itertools
import os
import select
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.pq import ExecStatus

import txpool

#: The table's rows: transactions with the same row wait for each other.
ROWS = 256
#: The statements that make the table.
TABLE = (
    "create table t (id integer primary key, a integer)",
    f"insert into t values {', '.join(f'({row}, 0)' for row in range(ROWS))}",
)
UPDATE = "update t set a = a + 1 where id = %s"
#: The modules of the drivers that are compared.
DRIVERS = {"psycopg": "psycopg", "pymysql": "pymysql", "mysqlclient": "MySQLdb"}

_numbers = itertools.count()
_INT2 = 21
_GOOD = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.PIPELINE_SYNC)


def open_connection(driver: str, url: str, password: str) -> Any:
    """A connection of the bare driver."""
    if driver == "psycopg":
        return psycopg.connect(url, password=password)
    parts = urlsplit(url)
    return importlib.import_module(DRIVERS[driver]).connect(
        host=parts.hostname, port=parts.port, user=parts.username, password=password, database=parts.path[1:]
    )


class ByHand(ABC):
    """What a careful person writes without a transaction manager: correct as long as nothing fails."""

    def __init__(self, connections: Iterable[Any], folder: Path, row: int = 0) -> None:
        self._connections = [*connections]
        self._log = os.open(folder / f"by-hand-{next(_numbers)}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._row = (row,)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        os.close(self._log)

    @abstractmethod
    def transaction(self) -> None:
        """One transaction."""


class PsycopgByHand(ByHand):
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


class PsycopgMessages(ByHand):
    """The messages that txpool sends, by libpq and with nothing around them: no transaction manager can cost less.

    BEGIN goes with the statement, the evidence with PREPARE, and each step to all servers before the first answer.
    """

    def __init__(self, connections: Iterable[Any], folder: Path, row: int = 0) -> None:
        super().__init__(connections, folder, row)
        self._sessions = [connection.pgconn for connection in self._connections]
        self._statement = UPDATE.replace("%s", "$1").encode(), [row.to_bytes(2)], [_INT2], [1]

    def transaction(self) -> None:
        gid = f"by-hand-{next(_numbers)}"
        branches = [(session, f"'{gid}:{number}'".encode()) for number, session in enumerate(self._sessions)]
        for session, _ in branches:
            session.enter_pipeline_mode()
            session.send_query_params(b"begin", None)
            session.send_query_params(*self._statement)
            session.pipeline_sync()
            self._answers(session, 3)
            session.exit_pipeline_mode()
        for session, name in branches:
            session.send_query(b"select pg_catalog.pg_current_xact_id_if_assigned(); prepare transaction " + name)
        for session, _ in branches:
            self._answers(session, 2)
        os.write(self._log, f"{gid} commits\n".encode())
        os.fdatasync(self._log)
        for session, name in branches:
            session.send_query(b"commit prepared " + name)
        for session, _ in branches:
            self._answers(session, 1)

    def _answers(self, session: Any, count: int) -> None:
        """Read so many results, and what ends them."""
        poll = select.poll()
        poll.register(session.socket, select.POLLIN)
        while count:
            while session.is_busy():
                poll.poll()
                session.consume_input()
            result = session.get_result()
            if result is not None:
                assert result.status in _GOOD, result.error_message
                count -= 1
        if session.pipeline_status == psycopg.pq.PipelineStatus.OFF:
            assert session.get_result() is None


class MySQLByHand(ByHand):
    def __init__(self, connections: Iterable[Any], folder: Path, row: int = 0) -> None:
        super().__init__(connections, folder, row)
        self._cursors = [connection.cursor() for connection in self._connections]

    def transaction(self) -> None:
        if len(self._connections) == 1:
            self._cursors[0].execute(UPDATE, self._row)
            self._connections[0].commit()
            return
        gid = f"by-hand-{next(_numbers)}"
        branches = [(cursor, f"'{gid}','{number}'") for number, cursor in enumerate(self._cursors)]
        for cursor, xid in branches:
            cursor.execute(f"xa start {xid}")
            cursor.execute(UPDATE, self._row)
        for cursor, xid in branches:
            cursor.execute(f"xa end {xid}")
            cursor.execute(f"xa prepare {xid}")
        os.write(self._log, f"{gid} commits\n".encode())
        os.fdatasync(self._log)
        for cursor, xid in branches:
            cursor.execute(f"xa commit {xid}")


def by_hand(
    driver: str, databases: Iterable[tuple[str, str]], folder: Path, row: int = 0, *, messages: bool = False
) -> ByHand:
    """The transaction by hand over these databases, each by its url and password; of psycopg also its bare messages."""
    connections = [open_connection(driver, url, password) for url, password in databases]
    psycopg_kind = PsycopgMessages if messages else PsycopgByHand
    return (psycopg_kind if driver == "psycopg" else MySQLByHand)(connections, folder, row)


def with_txpool(datasources: Sequence[txpool.DataSource], row: int = 0) -> Callable[[], None]:
    """The same with txpool."""
    values = (row,)

    def over_psycopg() -> None:
        with txpool.transaction():
            for datasource in datasources:
                with datasource.connect() as connection:
                    connection.execute(UPDATE, values)

    def over_any_driver() -> None:
        with txpool.transaction():
            for datasource in datasources:
                with datasource.connect() as connection:
                    connection.cursor().execute(UPDATE, values)

    return over_psycopg if datasources[0].settings.driver == "psycopg" else over_any_driver
