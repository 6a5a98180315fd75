"""Databases with Java drivers: the drivers' jars, which Maven brings, and connections over them.

A process has one JVM. Tests in one process share it, and what needs another one runs in a process of its own.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Require
    from tests.support.mysql import MySQLServer
    from txpool.demo.server import EmbeddedPostgres
    from txpool.resources.jdbc.dbapi.connection import JdbcConnection

_REPOSITORY = Path.home() / ".m2/repository"
_ARTIFACTS = {
    "h2": ("com.h2database:h2:2.4.240",),
    "derby": (
        "org.apache.derby:derby:10.16.1.1",
        "org.apache.derby:derbyshared:10.16.1.1",
        "org.apache.derby:derbytools:10.16.1.1",
    ),
    "postgresql": ("org.postgresql:postgresql:42.7.8",),
    "mariadb": ("org.mariadb.jdbc:mariadb-java-client:3.5.6",),
}
DATABASES = tuple(_ARTIFACTS)


@dataclass(frozen=True)
class Jars:
    """The class path of each driver."""

    h2: tuple[str, ...]
    derby: tuple[str, ...]
    postgresql: tuple[str, ...]
    mariadb: tuple[str, ...]

    def of(self, name: str) -> tuple[str, ...]:
        return dict(zip((each.name for each in fields(self)), vars(self).values(), strict=True))[name]


def jar(artifact: str) -> Path:
    """Where Maven keeps it, which fetches it where it is not there yet."""
    group, name, version = artifact.split(":")
    place = _REPOSITORY / group.replace(".", "/") / name / version / f"{name}-{version}.jar"
    with open(Path(tempfile.gettempdir()) / "txpool-test-maven.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the suite's other processes want the same
        maven = shutil.which("mvn")
        if not place.exists() and maven is not None:
            command = [maven, "-q", "-B", "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false"]
            subprocess.run(command, check=False, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return place


def find_jars() -> Jars | None:
    """All drivers' jars; None where Maven is missing, or brings not all."""
    found = {name: tuple(str(jar(each)) for each in artifacts) for name, artifacts in _ARTIFACTS.items()}
    if not all(Path(each).exists() for paths in found.values() for each in paths):
        return None
    return Jars(**found)


@pytest.fixture(scope="session")
def jdbc_jars(require: Require) -> Jars:
    """The jars of H2, Derby, and the drivers of PostgreSQL and MariaDB."""
    found = find_jars()
    require(found, "Java drivers: apt-get install maven default-jdk-headless, which bring them")
    assert found is not None
    return found


class JdbcDatabase:
    """One database, and how a Java driver connects to it."""

    def __init__(self, name: str, jars: Jars, datasource: str, setters: dict[str, Any]) -> None:
        self.name = name
        self._jars = jars
        self._datasource = datasource
        self._setters = setters

    def datasource(self, **more: Any) -> Any:
        """A javax.sql.DataSource."""
        from txpool.resources.jdbc.jvm import jvm

        made = jvm.started(self._jars.of(self.name)).load(self._datasource)()
        for setter, value in (self._setters | more).items():
            getattr(made, f"set{setter}")(value)
        return made

    def connect(self, **more: Any) -> JdbcConnection:
        """A new connection."""
        from txpool.resources.jdbc.dbapi import errors
        from txpool.resources.jdbc.dbapi.connection import JdbcConnection

        return JdbcConnection(errors.call(self.datasource(**more).getConnection))


def h2(jars: Jars, place: str) -> JdbcDatabase:
    """H2 in this process: in memory (`mem:name`), or in a file (`file:/path`)."""
    return JdbcDatabase("h2", jars, "org.h2.jdbcx.JdbcDataSource", {"URL": f"jdbc:h2:{place};DB_CLOSE_DELAY=-1"})


def derby(jars: Jars, name: str) -> JdbcDatabase:
    """Derby in this process: in memory (`memory:name`), or in a folder."""
    from txpool.resources.jdbc.jvm import jvm

    system = jvm.started(jars.derby).load("java.lang.System")
    system.setProperty("derby.stream.error.file", "/dev/null")
    return JdbcDatabase(
        "derby",
        jars,
        "org.apache.derby.jdbc.EmbeddedDataSource",
        {"DatabaseName": name, "CreateDatabase": "create"},
    )


def postgresql(jars: Jars, server: EmbeddedPostgres, database: str = "one") -> JdbcDatabase:
    """A database of PostgreSQL's server."""
    address = f"jdbc:postgresql://127.0.0.1:{server.port}/{database}"
    setters = {"URL": address, "User": server.user, "Password": server.password}
    return JdbcDatabase("postgresql", jars, "org.postgresql.ds.PGSimpleDataSource", setters)


def mariadb(jars: Jars, server: MySQLServer, database: str = "one") -> JdbcDatabase:
    """A database of MariaDB's server."""
    address = f"jdbc:mariadb://127.0.0.1:{server.port}/{database}"
    setters = {"Url": address, "User": server.user, "Password": server.password}
    return JdbcDatabase("mariadb", jars, "org.mariadb.jdbc.MariaDbDataSource", setters)


@pytest.fixture
def jdbc_database(request: pytest.FixtureRequest, jdbc_jars: Jars) -> JdbcDatabase:
    """An empty database of each kind; a test of fewer gives their names by `indirect`."""
    name: str = request.param
    if name == "h2":
        return h2(jdbc_jars, f"mem:{request.node.nodeid.encode().hex()[-60:]}")
    if name == "derby":
        return derby(jdbc_jars, f"memory:{request.node.nodeid.encode().hex()[-60:]}")
    if name == "postgresql":
        databases = request.getfixturevalue("databases")
        return postgresql(jdbc_jars, databases.server)
    server: MySQLServer = request.getfixturevalue("mariadb")
    server.empty()
    return mariadb(jdbc_jars, server)


@contextmanager
def java_zone(name: str) -> Iterator[None]:
    """Within the block the JVM's own time zone is this one."""
    from txpool.resources.jdbc.jvm import jvm

    zones: Callable[[], Any] = jvm.started().load("java.util.TimeZone")
    former = zones.getDefault()  # type: ignore[attr-defined]
    zones.setDefault(zones.getTimeZone(name))  # type: ignore[attr-defined]
    try:
        yield
    finally:
        zones.setDefault(former)  # type: ignore[attr-defined]
