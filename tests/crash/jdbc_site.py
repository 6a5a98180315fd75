"""Databases over JDBC beside others, in a folder, for crash tests. Only children have a JVM: Derby has one owner."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import Databases
from tests.crash.folder_site import FolderSite
from tests.support.jdbc_places import DERBY_OPTIONS, JdbcPlaces
from tests.support.mysql import MySQLServer
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from tests.support.jdbc import Jars

#: Whether everything is killed that can be, and not a sample.
EVERY_POINT = os.environ.get("TXPOOL_TEST_EVERY_JDBC_POINT") == "1"
#: PostgreSQL over psycopg; PostgreSQL's other database, MariaDB, Derby and H2 over JDBC; H2 over TCP; marked: a SQLite
#: file, and H2's.
POSTGRESQL, POSTGRESQL_JDBC, MARIADB_JDBC, DERBY, FILE = "pg", "pg-jdbc", "maria-jdbc", "derby", "file-ledger"
H2, H2_SERVED, H2_LEDGER = "h2", "h2-served", "h2-ledger"
#: Those that one process at a time can open.
EMBEDDED = (DERBY, H2, H2_LEDGER)
_IN_DOUBT = {
    DERBY: "select global_xid from syscs_diag.transaction_table where status = 'PREPARED'",
    H2: "select transaction_name from information_schema.in_doubt",
    H2_SERVED: "select transaction_name from information_schema.in_doubt",
}
#: Executes what it reads. Of Derby, closing all connections is not enough for another process to open it.
_ASKING = """
import json, sys
from contextlib import closing, suppress
from txpool.config.settings import DataSourceSettings
from txpool.datasource import DataSource
from txpool.resources.jdbc.dbapi import errors
from txpool.resources.jdbc.jvm import jvm

for line in sys.stdin:
    name, statement = json.loads(line)
    settings = DataSourceSettings.load(f"{name}.properties")
    with DataSource.from_settings(settings) as source, closing(source.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        rows = [list(row) for row in cursor.fetchall()] if cursor.description else []
        connection.commit()
    if name == "derby":
        derby = jvm.started(settings.jdbc_classpath).load("org.apache.derby.jdbc.EmbeddedDataSource")()
        derby.setDatabaseName(settings.driver_options["databaseName"])
        derby.setShutdownDatabase("shutdown")
        with suppress(errors.Error):  # which is its answer
            errors.call(derby.getConnection)
    print(json.dumps(rows), flush=True)
"""


class JdbcSite(FolderSite):
    """A folder with the files of the datasources, a log, and recovery."""

    def __init__(
        self,
        folder: Path,
        databases: Databases,
        mariadb: MySQLServer,
        jars: Jars,
        names: tuple[str, ...],
        *,
        h2_port: int = 0,
    ) -> None:
        self.folder = folder
        self.databases = databases
        self.mariadb = mariadb
        self.names = names
        self._asking: subprocess.Popen[str] | None = None
        places = JdbcPlaces(folder, jars, {"postgresql": databases.server, "mariadb": mariadb}.__getitem__)
        for database in ("one", "two"):
            databases.execute(database, "create table t (id int)")
        mariadb.empty()
        mariadb.execute("create table t (id int) engine=innodb", database="one")
        with closing(sqlite3.connect(folder / "ledger.db")) as file:
            file.execute("create table t (id int)")
        on_two = f"jdbc:postgresql://127.0.0.1:{databases.server.port}/two"
        # Derby's are those of all: a process has one JVM, whichever is first.
        java = {"jvm.options": DERBY_OPTIONS} if DERBY in names else {}
        texts = {
            POSTGRESQL: f"driver = psycopg\nurl = {databases.url('one')}\npassword = ${{env:PG}}\n",
            POSTGRESQL_JDBC: places.lines("postgresql", url=on_two, Password="${env:PG}", **java),
            MARIADB_JDBC: places.lines("mariadb", Password="${env:MARIA}", **java),
            DERBY: places.lines("derby", **java),
            H2: places.lines("h2", **java),
            H2_SERVED: places.lines("h2", url=f"jdbc:h2:tcp://127.0.0.1:{h2_port}/./h2", **java),
            H2_LEDGER: places.lines("h2", "cmr", **{"cmr.immediate-cleanup": "true"}, **java),
            FILE: "driver = sqlite3\nmode = cmr\ncmr.immediate-cleanup = true\nurl = sqlite:///ledger.db\n",
        }
        log = "node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true\n"
        files = ", ".join(f"{name}.properties" for name in names)
        texts |= {"txpool": log, "recovery": f"{log}recovery.backoff = 0\ndatasources = {files}\n"}
        for name, text in texts.items():
            (folder / f"{name}.properties").write_text(text)
            (folder / f"{name}.properties").chmod(0o600)
        #: Where the files' passwords are.
        self.secrets = {"PG": databases.server.password, "MARIA": mariadb.password}
        self.environment = os.environ | self.secrets | {"PYTHONPATH": str(ROOT)}
        made = self.run("-m", "recovery", "init", "--conf", "recovery.properties")
        assert made.returncode == 0, made.stdout + made.stderr
        for name in filter({*EMBEDDED, H2_SERVED}.__contains__, names):
            self.ask(name, "create table t (id int)")

    def ask(self, name: str, statement: str) -> list[list[Any]]:
        """Execute a statement in Derby or H2, in a process that opens them only meanwhile; its rows."""
        if self._asking is None:
            command = [sys.executable, "-c", _ASKING]
            pipe = subprocess.PIPE
            self._asking = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdin=pipe, stdout=pipe, text=True
            )
        assert self._asking.stdin is not None
        assert self._asking.stdout is not None
        self._asking.stdin.write(json.dumps([name, statement]) + "\n")
        self._asking.stdin.flush()
        rows: list[list[Any]] = json.loads(self._asking.stdout.readline())
        return rows

    def close(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.communicate(timeout=600)

    def rows(self, name: str) -> list[int]:
        query = "select id from t order by id"
        if name == POSTGRESQL:
            found: list[Any] = self.databases.rows("one", query)
        elif name == POSTGRESQL_JDBC:
            found = self.databases.rows("two", query)
        elif name == MARIADB_JDBC:
            found = self.mariadb.execute(query, database="one")
        elif name in EMBEDDED or name == H2_SERVED:
            found = self.ask(name, query)
        else:
            found = self.in_the_file(query)
        return [number for (number,) in found]

    def marks(self) -> list[tuple[Any, ...]]:
        query = "select xid from xids where xid <> 'txp1:identity'"
        if H2_LEDGER in self.names:
            return [tuple(row) for row in self.ask(H2_LEDGER, query)]
        return self.in_the_file(query) if FILE in self.names else []

    def prepared(self) -> list[str]:
        found = [*self.databases.prepared(), *self.mariadb.names()]
        for name in filter(_IN_DOUBT.__contains__, self.names):
            found += [str(xid) for (xid,) in self.ask(name, _IN_DOUBT[name])]
        return found
