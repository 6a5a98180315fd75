"""Databases that a decision log may be in, each on a server of its kind: read and written past txpool."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from tests.support.mysql import MySQLServer
from txpool.config.secrets import Secret
from txpool.log import SqlLog
from txpool.resources.postgresql.log.server import key_of

if TYPE_CHECKING:
    from tests.conftest import Databases

KINDS = ("postgresql", "mariadb", "mysql")
#: Seconds until something that ought to have come by itself is given up.
_TIMEOUT = 20.0


class LogPlace(ABC):
    """Two empty databases, `one` and `two`, of one server."""

    kind: str
    server: Any

    @property
    def password(self) -> str:
        return str(self.server.password)

    def url(self, database: str = "one") -> str:
        return str(self.server.url(database))

    def open(self, node: str, database: str = "one", *, create: bool = True, **options: Any) -> SqlLog:
        return SqlLog(self.url(database), node=node, create=create, password=Secret(self.password), **options)

    @abstractmethod
    def connect(self, database: str = "one", *, autocommit: bool = True) -> Any:
        """A connection of the administrator, whose `execute` returns a cursor."""

    @abstractmethod
    def tables(self, database: str) -> list[str]:
        """The names of txpool's tables there."""

    @abstractmethod
    def blocked(self, connection: Any) -> int:
        """How many sessions wait for a lock."""

    @abstractmethod
    def lease_is_free(self, connection: Any, incarnation: str) -> bool: ...

    @abstractmethod
    def cut_lease(self, node: str) -> None:
        """End the session that holds the lease of a node's only living incarnation."""

    @abstractmethod
    def cut_sessions(self, *, leases: bool = False) -> None:
        """End the log's other sessions, or also those of leases."""

    def rows(self, database: str, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.session(database) as connection:
            return list(connection.execute(query, parameters).fetchall())

    def execute(self, database: str, *statements: str) -> None:
        with self.session(database) as connection:
            for statement in statements:
                connection.execute(statement)

    @contextmanager
    def session(self, database: str = "one", *, autocommit: bool = True) -> Iterator[Any]:
        connection = self.connect(database, autocommit=autocommit)
        try:
            yield connection
        finally:
            connection.close()

    def await_blocked(self, sessions: int = 1) -> None:
        """Returns once so many sessions wait for a lock, which no event tells."""
        self._await(lambda connection: self.blocked(connection) >= sessions, f"{sessions} sessions wait for a lock")

    def await_lease(self, incarnation: str) -> None:
        """Returns once the server has freed an incarnation's lease."""
        self._await(lambda connection: self.lease_is_free(connection, incarnation), "the lease is free")

    def _await(self, condition: Any, what: str) -> None:
        until = time.monotonic() + _TIMEOUT
        with self.session() as connection:
            while not condition(connection):
                assert time.monotonic() < until, f"it does not come about that {what}"
                time.sleep(0.11)  # InnoDB shows its transactions no more often than this


class PostgreSQLPlace(LogPlace):
    """In PostgreSQL."""

    kind = "postgresql"

    def __init__(self, databases: Databases) -> None:
        self.databases = databases
        self.server = databases.server

    def connect(self, database: str = "one", *, autocommit: bool = True) -> Any:
        return psycopg.connect(self.databases.dsn(database), autocommit=autocommit)

    def tables(self, database: str) -> list[str]:
        query = "SELECT relname FROM pg_class WHERE starts_with(relname, 'txpool')"
        return [name for (name,) in self.rows(database, query)]

    def blocked(self, connection: Any) -> int:
        return len(connection.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchall())

    def lease_is_free(self, connection: Any, incarnation: str) -> bool:
        with connection.transaction():
            taking = connection.execute("SELECT pg_try_advisory_xact_lock_shared(%s)", [key_of(incarnation)])
            return bool(taking.fetchone()[0])

    def cut_lease(self, node: str) -> None:
        assert self._end(f"txpool lease {node}") == [(True,)]

    def cut_sessions(self, *, leases: bool = False) -> None:
        self._end("txpool l%" if leases else "txpool log")

    def _end(self, application: str) -> list[tuple[Any, ...]]:
        query = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name LIKE %s"
        return self.rows("one", query, [application])


class PyMySQLConnection:
    """A connection of PyMySQL with psycopg's execute()."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.commit, self.rollback, self.close = raw.commit, raw.rollback, raw.close

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> Any:
        cursor = self._raw.cursor()
        cursor.execute(statement, parameters)
        return cursor


class MySQLPlace(LogPlace):
    """In MariaDB or MySQL."""

    def __init__(self, server: MySQLServer) -> None:
        self.server: MySQLServer = server
        self.kind = "mariadb" if server.is_mariadb else "mysql"
        server.empty()

    def connect(self, database: str = "one", *, autocommit: bool = True) -> Any:
        return PyMySQLConnection(self.server.connect(database, autocommit=autocommit))

    def tables(self, database: str) -> list[str]:
        return [name for (name,) in self.rows(database, "show tables") if name.startswith("txpool")]

    def blocked(self, connection: Any) -> int:
        query = "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"
        return int(connection.execute(query).fetchone()[0])

    def lease_is_free(self, connection: Any, incarnation: str) -> bool:
        query = "select is_used_lock(lease) from txpool_incarnations where name = %s"
        return bool(connection.execute(query, [incarnation]).fetchone() in (None, (None,)))

    def cut_lease(self, node: str) -> None:
        ((session,),) = self.rows(
            "one", "select session from txpool_incarnations where node = %s and fenced = 0", [node]
        )
        self.server.end_sessions(session)

    def cut_sessions(self, *, leases: bool = False) -> None:
        query = """select id from information_schema.processlist where db = 'one' and id <> connection_id()
            and (%s or id not in (select session from txpool_incarnations))"""
        found = [session for (session,) in self.rows("one", query, [leases])]
        if found:
            self.server.end_sessions(*found)


def place_of(kind: str, fixture: Any) -> LogPlace:
    """An empty place of a kind, by `request.getfixturevalue`."""
    if kind == "postgresql":
        return PostgreSQLPlace(fixture("databases"))
    return MySQLPlace(fixture("mariadb" if kind == "mariadb" else "mysql8"))
