"""A database, branches in it, and ways to lose their sessions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.mysql import MySQLServer
from tests.support.mysql_proxy import MySQLProxy
from txpool import DataSource
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import PrepareVote
from txpool.resources.driver.making import Driver, make_driver
from txpool.resources.mysql.branches.branch import MySQLBranch
from txpool.resources.mysql.branches.recovery import MySQLBranchRecovery
from txpool.xid import Xid, make_gtrid, make_xid, new_incarnation

INCARNATION = new_incarnation()
numbers = itertools.count()
#: Whether a session sleeps.
SLEEPING = "select 1 from information_schema.processlist where info like '%sleep(%' and id <> connection_id()"


def new_xid(datasource: str = "one", **options: Any) -> Xid:
    return make_xid(make_gtrid("tests", INCARNATION, next(numbers)), 0, datasource, **options)


class BranchDatabase:
    """The database "one" of a server, with a table `work`, branches in it, and ways to lose their sessions."""

    def __init__(self, server: MySQLServer, driver: str = "pymysql") -> None:
        self.server = server
        self.driver_name = driver
        server.execute("create table work (id int primary key, v int) engine=innodb", database="one")
        self.driver = self.driver_of()
        #: The driver's module, with its errors.
        self.module = self.driver.module
        self.recovery = MySQLBranchRecovery(self.driver)
        self.raws: list[Any] = []
        self.proxies: list[MySQLProxy] = []
        self.datasources: list[DataSource] = []

    def proxy(self) -> MySQLProxy:
        self.proxies.append(MySQLProxy(self.server.port))
        return self.proxies[-1]

    def options(self, database: str = "one", *, port: int = 0, **options: Any) -> dict[str, Any]:
        url = self.server.url(database).replace(f":{self.server.port}/", f":{port or self.server.port}/")
        if port:  # the proxy reads what passes
            ours = self.driver_name == "pymysql"
            options |= {"driver_ssl_disabled": "true"} if ours else {"driver_ssl_mode": "DISABLED"}
        password = Secret(self.server.password)
        return {"driver": self.driver_name, "mode": "xa", "url": url, "password": password, **options}

    def require_pymysql(self) -> None:
        """For what mysqlclient does not have, or does not tell."""
        if self.driver_name != "pymysql":
            pytest.skip("mysqlclient does not tell that, or does not have it")

    def driver_of(self, database: str = "one", **options: Any) -> Driver:
        return make_driver(DataSourceSettings.load(name=database, **self.options(database, **options)))

    def datasource(self, database: str = "one", **options: Any) -> DataSource:
        self.datasources.append(DataSource(name=options.pop("name", database), **self.options(database, **options)))
        return self.datasources[-1]

    def branch(
        self,
        statement: str | None = "insert into work values (1, 1)",
        *,
        driver: Driver | None = None,
        raw: Any = None,
    ) -> MySQLBranch:
        driver = driver or self.driver
        raw = driver.connect() if raw is None else raw
        self.raws.append(raw)
        branch = MySQLBranch("one", driver, raw)
        branch.name(new_xid())
        if statement is not None:
            self.execute(statement, raw, driver)
        return branch

    def execute(self, statement: str, raw: Any = None, driver: Driver | None = None) -> Any:
        """Execute as a handle in a transaction does."""
        raw = self.raws[-1] if raw is None else raw
        driver = driver or self.driver
        driver.begin(raw)
        try:
            return driver.execute(raw, statement)
        except Exception as error:
            driver.note_failure(raw, None, error)
            raise

    def prepared_branch(
        self, statement: str = "insert into work values (1, 1)", *, driver: Driver | None = None
    ) -> MySQLBranch:
        branch = self.branch(statement, driver=driver)
        branch.start_prepare()
        assert branch.await_prepare() is PrepareVote.COMMIT
        return branch

    def kill(self, raw: Any = None) -> None:
        """The server ends the session."""
        raw = self.raws[-1] if raw is None else raw
        self.server.end_sessions(raw.session_number)

    def sessions(self) -> list[int]:
        return [number for (number,) in self.server.execute("select id from information_schema.processlist")]

    def rows(self) -> list[int]:
        return [number for (number,) in self.server.execute("select id from work order by id", database="one")]

    def close(self) -> None:
        for raw in self.raws:
            raw.break_off()
        for datasource in self.datasources:
            datasource.close()
        for proxy in self.proxies:
            proxy.close()


def both(world: BranchDatabase) -> list[list[int]]:
    """The numbers in the table of each of the server's two databases."""
    read = "select id from work order by id"
    return [[number for (number,) in world.server.execute(read, database=name)] for name in ("one", "two")]


def work(number: int, *sources: DataSource) -> None:
    """Insert the number into the table of each datasource."""
    for each in sources:
        each.connect().cursor().execute(f"insert into work (id) values ({number})")
