"""Three databases that prepare and three that are marked, of PostgreSQL, MariaDB, MySQL and SQLite, for crash tests."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.conftest import Databases
from tests.crash.folder_site import FolderSite
from tests.support.mysql import MySQLServer
from tests.support.repository import ROOT

POSTGRESQL, MARIADB, MYSQL = "pg", "maria", "mysql"
#: Each server over another driver.
DRIVERS = {MARIADB: "pymysql", MYSQL: "mysqlclient"}
#: Marked: in the second databases of the servers, and in a file.
MARKED = {"maria-ledger": MARIADB, "mysql-ledger": MYSQL}
FILE = "file-ledger"


class Site(FolderSite):
    """A folder with the files of three databases, a log, and recovery."""

    #: Whether each mark is deleted by itself, and not in batches.
    immediate_cleanup = "true"

    def __init__(self, folder: Path, databases: Databases, mariadb: MySQLServer, mysql8: MySQLServer) -> None:
        self.folder = folder
        self.databases = databases
        self.servers = {MARIADB: mariadb, MYSQL: mysql8}
        databases.execute("one", "create table t (id int)")
        self.write(POSTGRESQL, f"driver = psycopg\nurl = {databases.url('one')}\npassword = ${{env:PG}}")
        for name, server in self.servers.items():
            server.empty()
            server.execute("create table t (id int) engine=innodb", database="one")
            url = f"driver = {DRIVERS[name]}\nmode = xa\nurl = {server.url('one')}"
            self.write(name, f"{url}\npassword = ${{env:{name.upper()}}}")
        for name, server in MARKED.items():
            self.servers[server].execute("create table t (id int) engine=innodb", database="two")
            how = f"driver = {DRIVERS[server]}\nmode = cmr\ncmr.immediate-cleanup = {self.immediate_cleanup}"
            self.write(name, f"{how}\nurl = {self.servers[server].url('two')}\npassword = ${{env:{server.upper()}}}")
        with closing(sqlite3.connect(folder / "ledger.db")) as file:
            file.execute("create table t (id int)")
        how = f"driver = sqlite3\nmode = cmr\ncmr.immediate-cleanup = {self.immediate_cleanup}"
        self.write(FILE, f"{how}\nurl = sqlite:///ledger.db")
        log = "node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true\n"
        self.write("txpool", log)
        files = ", ".join(f"{name}.properties" for name in (POSTGRESQL, *self.servers, *MARKED, FILE))
        self.write("recovery", f"{log}recovery.backoff = 0\ndatasources = {files}")
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PG": databases.server.password,
            **{name.upper(): server.password for name, server in self.servers.items()},
        }
        made = self.run("-m", "recovery", "init", "--conf", "recovery.properties")
        assert made.returncode == 0, made.stdout + made.stderr

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.properties").write_text(f"{text}\n")

    def rows(self, name: str) -> list[int]:
        if name == POSTGRESQL:
            found = self.databases.rows("one", "select id from t order by id")
        elif name == FILE:
            found = self.in_the_file("select id from t order by id")
        elif name in MARKED:
            found = self.servers[MARKED[name]].execute("select id from t order by id", database="two")
        else:
            found = self.servers[name].execute("select id from t order by id", database="one")
        return [number for (number,) in found]

    def marks(self) -> list[tuple[Any, ...]]:
        query = "select xid from xids where xid <> 'txp1:identity'"
        found = [self.servers[server].execute(query, database="two") for server in MARKED.values()]
        return [*self.in_the_file(query), *found[0], *found[1]]

    def prepared(self) -> list[str]:
        return [*self.databases.prepared(), *(each for server in self.servers.values() for each in server.names())]
