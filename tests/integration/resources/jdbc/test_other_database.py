"""A database that txpool does not know, by its driver's word alone: HSQLDB, whose DDL commits in silence."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from tests.support.jdbc import jar
from tests.support.waiting import until
from txpool.config.settings import DataSourceSettings
from txpool.datasource import DataSource
from txpool.demo.server import free_port

if TYPE_CHECKING:
    from tests.conftest import Require

JAR = "org.hsqldb:hsqldb:2.7.4"


class Hsqldb:
    """A server of one database, in which what was committed is on the disk."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self.url = f"jdbc:hsqldb:hsql://127.0.0.1:{self._port}/one"
        place = f"file:{folder}/one;hsqldb.tx=mvcc;hsqldb.write_delay=false;hsqldb.lock_file=false"
        self._command = ["java", "-cp", str(jar(JAR)), "org.hsqldb.server.Server", "--address", "127.0.0.1"]
        self._command += ["--port", str(self._port), "--database.0", place, "--dbname.0", "one", "--silent", "true"]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until(self._answers, what="HSQLDB has not started")

    def _answers(self) -> bool:
        assert self._process.poll() is None, "HSQLDB has ended"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def hsqldb(require: Require, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hsqldb]:
    require(jar(JAR).exists(), f"{JAR}: apt-get install maven default-jdk-headless, which bring it")
    server = Hsqldb(tmp_path_factory.mktemp("hsqldb"))
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def source(hsqldb: Hsqldb, tmp_path: Path) -> Iterator[DataSource]:
    txpool.configure(node_name="etl-1", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    path = tmp_path / "other.properties"
    path.write_text(
        f"driver = jdbc\nmode = local\nurl = {hsqldb.url}\njdbc.driver-class = org.hsqldb.jdbc.JDBCDriver\n"
        f"jdbc.classpath = {jar(JAR)}\nuser = SA\npassword =\n"
    )
    with DataSource.from_settings(DataSourceSettings.load(path)) as found:
        for statement in ("drop table t if exists", "create table t (id int primary key)"):
            execute(found, statement)
        yield found
    txpool.configure()


def execute(source: DataSource, statement: str) -> list[tuple[Any, ...]]:
    with closing(source.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        rows = [] if cursor.description is None else cursor.fetchall()
        connection.commit()
    return rows


def rows(source: DataSource) -> list[int]:
    return [number for (number,) in execute(source, "select id from t order by id")]


def insert(source: DataSource, number: int) -> None:
    source.connect().cursor().execute("insert into t (id) values (?)", (number,))


@pytest.mark.costly
def test_a_driver_that_fails_to_tell_the_key_of_a_row_has_inserted_it(source: DataSource) -> None:
    """HSQLDB's answers with a closed result from the second INSERT on, where the table makes no keys."""
    for number in (1, 2, 3):
        with txpool.transaction():
            insert(source, number)
    assert rows(source) == [1, 2, 3]


@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
def test_ddl_that_has_committed_a_part_is_told(source: DataSource, *, committing: bool) -> None:
    expected = txpool.TransactionInDoubt if committing else txpool.HeuristicError
    with pytest.raises(expected) as raised, txpool.transaction():
        insert(source, 1)
        source.connect().cursor().execute("create table if not exists made_inside (id int)")
        insert(source, 2)
        if not committing:
            raise ZeroDivisionError
    assert rows(source) == [1]
    if committing:
        told = str(raised.value)
        assert "by a COMMIT, a ROLLBACK or DDL of the program's own" in told
        assert "a part of it is committed, or may be" in told
        assert "reply" not in told, "nothing was lost"


@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
def test_ddl_whose_session_is_lost_behind_it_may_have_committed_a_part(
    source: DataSource, hsqldb: Hsqldb, *, committing: bool
) -> None:
    with pytest.raises((txpool.HeuristicError, txpool.TransactionInDoubt)), txpool.transaction():
        insert(source, 1)
        source.connect().cursor().execute("create table if not exists made_inside (id int)")
        hsqldb.kill()
        hsqldb.start()
        if not committing:
            raise ZeroDivisionError
    assert rows(source) == [1]


@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
def test_what_was_only_written_has_rolled_back_with_its_session(
    source: DataSource, hsqldb: Hsqldb, *, committing: bool
) -> None:
    with pytest.raises(txpool.TransactionRolledBack if committing else ZeroDivisionError), txpool.transaction():
        insert(source, 1)
        hsqldb.kill()
        hsqldb.start()
        if not committing:
            raise ZeroDivisionError
    assert rows(source) == []
