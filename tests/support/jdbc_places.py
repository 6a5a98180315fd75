"""Databases over JDBC for tests: H2 and Derby in a folder, PostgreSQL and MariaDB on the tests' servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txpool.config.settings import DataSourceSettings
from txpool.datasource import DataSource
from txpool.resources.jdbc.dbapi import errors
from txpool.resources.jdbc.jvm import jvm
from txpool.resources.marked.xids import Xids

if TYPE_CHECKING:
    from tests.support.jdbc import Jars

KINDS = ("h2", "derby", "postgresql", "mariadb")
CLASSES = {
    "h2": "org.h2.jdbcx.JdbcDataSource",
    "derby": "org.apache.derby.jdbc.EmbeddedXADataSource",
    "postgresql": "org.postgresql.xa.PGXADataSource",
    "mariadb": "org.mariadb.jdbc.MariaDbDataSource",
}
#: A test does not wait a minute for a lock.
DERBY_PROPERTIES = {
    "derby.locks.waitTimeout": "1",
    "derby.locks.deadlockTimeout": "1",
    "derby.stream.error.file": "/dev/null",
}
#: The same for a process of its own.
DERBY_OPTIONS = " ".join(f"-D{key}={value}" for key, value in DERBY_PROPERTIES.items())


class JdbcPlaces:
    """Files and settings of datasources over JDBC."""

    def __init__(self, folder: Path, jars: Jars, server_of: Callable[[str], Any]) -> None:
        self.folder = folder
        self._jars = jars
        self._server_of = server_of
        self.opened: list[DataSource] = []

    def lines(self, kind: str, mode: str = "xa", *, url: str = "", **options: str) -> str:
        """The text of a datasource's file."""
        found = {
            "xaDataSourceClassName": CLASSES[kind],
            "mode": mode,
            "jdbc.classpath": ",".join(getattr(self._jars, kind)),
        }
        if kind == "h2":
            found |= {"URL": url or f"jdbc:h2:file:{self.folder}/h2", "User": "sa", "Password": "sa"}
        elif kind == "derby":
            found |= {"databaseName": f"{self.folder}/derby", "createDatabase": "create"}
        else:
            server = self._server_of(kind)
            port, name = server.port, "postgresql" if kind == "postgresql" else "mariadb"
            found |= {
                "URL": url or f"jdbc:{name}://127.0.0.1:{port}/one",
                "User": server.user,
                "Password": server.password,
            }
        return "".join(f"{key} = {value}\n" for key, value in (found | options).items())

    def file(self, kind: str, mode: str = "xa", name: str = "", **options: str) -> Path:
        """A datasource's file."""
        path = self.folder / f"{name or kind}.properties"
        path.write_text(self.lines(kind, mode, **options))
        path.chmod(0o600)
        return path

    def settings(self, kind: str, mode: str = "xa", **options: str) -> DataSourceSettings:
        """The settings of a datasource that is opened in this process."""
        if kind == "derby":
            system = jvm.started(self._jars.derby).load("java.lang.System")
            for key, value in DERBY_PROPERTIES.items():
                system.setProperty(key, value)
        return DataSourceSettings.load(self.file(kind, mode, **options))

    def open(self, kind: str, mode: str = "xa", **options: str) -> DataSource:
        """A datasource in this process, with an empty table `t`, and its table of marks."""
        datasource = DataSource.from_settings(self.settings(kind, mode, **options))
        self.opened.append(datasource)
        self.execute(datasource, "create table t (id int not null primary key)")
        if mode == "cmr":
            Xids(datasource.name, datasource.driver_adapter, "xids").create()
        return datasource

    def execute(self, datasource: DataSource, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement outside transactions, and commit; its rows."""
        with closing(datasource.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            rows = [] if cursor.description is None else cursor.fetchall()
            connection.commit()
        return rows

    def rows(self, datasource: DataSource) -> list[int]:
        return [number for (number,) in self.execute(datasource, "select id from t order by id")]

    def close(self) -> None:
        for datasource in self.opened:
            datasource.close()
        if (self.folder / "derby").exists():
            self._shut_derby_down()

    def _shut_derby_down(self) -> None:
        """Derby keeps some 70 files of a database open until it is told otherwise, and Spark fails beyond 1,024."""
        import jpype

        if not jpype.isJVMStarted():
            return
        derby = jvm.started(self._jars.derby).load("org.apache.derby.jdbc.EmbeddedDataSource")()
        derby.setDatabaseName(f"{self.folder}/derby")
        derby.setShutdownDatabase("shutdown")
        with suppress(errors.Error):  # which is its answer
            errors.call(derby.getConnection)


@pytest.fixture
def jdbc_places(tmp_path: Path, jdbc_jars: Jars, request: pytest.FixtureRequest) -> Iterator[JdbcPlaces]:
    """Databases over JDBC; those on servers are emptied when they are first asked for."""
    servers: dict[str, Any] = {}

    def server_of(kind: str) -> Any:
        if kind not in servers:
            if kind == "postgresql":
                servers[kind] = request.getfixturevalue("databases").server
            else:
                servers[kind] = request.getfixturevalue("mariadb")
                servers[kind].empty()
        return servers[kind]

    places = JdbcPlaces(tmp_path, jdbc_jars, server_of)
    try:
        yield places
    finally:
        places.close()
