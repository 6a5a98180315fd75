"""A database, branches in it, and ways to lose their sessions."""

from __future__ import annotations

import itertools
import os
import socket
from typing import TYPE_CHECKING, Any

from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import PrepareVote
from txpool.resources.driver.making import Driver, make_driver
from txpool.resources.postgresql.branches.branch import PostgreSQLBranch
from txpool.xid import Xid, make_gtrid, make_xid, new_incarnation

if TYPE_CHECKING:
    from tests.conftest import Databases

INCARNATION = new_incarnation()
numbers = itertools.count()
SLOW = """
    create table work (id int primary key);
    create function nap() returns trigger language plpgsql as 'begin perform pg_sleep(1); return null; end';
    create constraint trigger slow after insert on work deferrable initially deferred
        for each row execute function nap()
"""


def new_xid(datasource: str = "one") -> Xid:
    return make_xid(make_gtrid("tests", INCARNATION, next(numbers)), 0, datasource)


def driver_of(databases: Databases, name: str, **options: Any) -> Driver:
    password = Secret(databases.server.password)
    settings = {"driver": "psycopg", "url": databases.url(name), "password": password, **options}
    return make_driver(DataSourceSettings.load(name=name, **settings))


class BranchDatabase:
    """One database, branches in it, and ways to lose their sessions."""

    def __init__(self, databases: Databases, name: str = "one") -> None:
        self.databases = databases
        self.name = name
        self.driver = driver_of(databases, name)
        self.raws: list[Any] = []

    def branch(self, statement: str | None = "insert into work values (1)") -> PostgreSQLBranch:
        raw = self.driver.connect()
        self.raws.append(raw)
        branch = PostgreSQLBranch(self.name, self.driver, raw)
        branch.name(new_xid(self.name))
        if statement is not None:
            raw.execute(statement)
        return branch

    def prepared_branch(self, statement: str = "insert into work values (1)") -> PostgreSQLBranch:
        branch = self.branch(statement)
        branch.start_prepare()
        assert branch.await_prepare() is PrepareVote.COMMIT
        assert branch.record.xid.joined in self.databases.prepared()
        return branch

    @property
    def raw(self) -> Any:
        """The last branch's session."""
        return self.raws[-1]

    def rows(self) -> list[int]:
        return [number for (number,) in self.databases.rows(self.name, "select id from work order by id")]

    def kill(self) -> None:
        """End the session on the server."""
        self.databases.rows(self.name, "select pg_terminate_backend(%s, 5000)", [self.raw.info.backend_pid])

    def cut(self) -> None:
        """Lose what the server has answered, or will: put a socket whose other end is closed in the place."""
        ours, theirs = socket.socketpair()
        theirs.close()
        os.dup2(ours.fileno(), self.raw.fileno())
        ours.close()
