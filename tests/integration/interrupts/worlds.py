"""Databases of each driver, two of them or one, and a transaction over them that may be interrupted."""

from __future__ import annotations

import gc
import logging
import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from recovery import RecoveryManager
from tests.support.jdbc_places import JdbcPlaces
from txpool.tm import ambient
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from tests.conftest import Databases

PASSWORD = "TXPOOL_TEST_INTERRUPTED"  # the name of a variable
#: By driver: which of its databases take part.
WORLDS = {
    "psycopg": ("one", "two"),
    "psycopg alone": ("one",),
    "sqlite3": ("file", "one"),
    "sqlite3 alone": ("file",),
    "sqlite3 last": ("file", "one"),
    "pymysql": ("one", "two"),
    "pymysql alone": ("one",),
    "mysqlclient": ("one", "two"),
    "jdbc": ("two", "one"),
    "jdbc alone": ("two",),
}
SIZE = 2
#: Seconds in which a thread rolls back what was left.
PATIENCE = 60.0
_POSTGRESQL_LEFT = """select query from pg_stat_activity where state like 'idle in transaction%'
    union all select gid from pg_prepared_xacts"""
#: InnoDB's status is made when it is asked for. Its view innodb_trx stays as it is while it is read again within 0.1 s:
#: a transaction that was there at the first look would be there for ever.
#: The server's own thread, which counts a table's rows behind some twenty changes, has transactions, too.
_INNODB_OPEN = re.compile(
    r"^---(TRANSACTION .+, ACTIVE .*\n(?:(?!---|.* InnoDB statistics$).*\n)*)(?=---)", re.MULTILINE
)


class World:
    """The databases, their datasources and recovery. `look` opens what reads them apart from txpool.

    Where `last`, the first one is a last resource, and each transaction has a larger timeout than those before it.
    """

    def __init__(
        self, folder: Path, files: dict[str, str], look: dict[str, Callable[[], Any]], *, last: bool = False
    ) -> None:
        self._folder = folder
        self._last = last
        for name, text in files.items():
            extra = f"pool.max-size = {SIZE}\npool.max-wait = 20\n"
            (folder / f"{name}.properties").write_text(text + extra)
            (folder / f"{name}.properties").chmod(0o600)
        log = f"node.name = tests\nlog.url = sqlite:///{folder}/log\nlog.create = true\n"
        (folder / "txpool.properties").write_text(log)
        names = ", ".join(f"{each}.properties" for each in files)
        (folder / "recovery.properties").write_text(f"{log}recovery.backoff = 0\ndatasources = {names}\n")
        txpool.configure(folder / "txpool.properties")
        self.sources = [txpool.DataSource.from_properties(folder / f"{each}.properties") for each in files]
        self._recovery = RecoveryManager(folder / "recovery.properties")
        self._stack = ExitStack()
        self._looking = {name: self._stack.enter_context(closing(each())) for name, each in look.items()}
        self.number = 0

    def close(self) -> None:
        self._stack.close()
        for source in self.sources:
            source.close()
        txpool.configure()

    def work(self, *, fails: bool) -> None:
        """One transaction with a row in each database."""
        self.number += 1
        with txpool.transaction(timeout=1000 + self.number if self._last else None):
            for source in self.sources:
                with closing(source.connect()) as connection:
                    connection.cursor().execute(f"insert into t values ({self.number})")
            if fails:
                raise ZeroDivisionError

    def _ask(self, name: str, query: str) -> list[Any]:
        with closing(self._looking[name].cursor()) as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def left(self) -> list[Any]:
        """What holds locks, and what is prepared."""
        found: list[Any] = []
        for name, each in self._looking.items():
            if isinstance(each, psycopg.Connection):
                found += self._ask(name, _POSTGRESQL_LEFT)
            elif isinstance(each, sqlite3.Connection):
                try:
                    each.execute("begin immediate")
                    each.execute("rollback")
                except sqlite3.OperationalError as error:
                    found.append(error)
            else:
                ((_, _, status),) = self._ask(name, "show engine innodb status")
                found += _INNODB_OPEN.findall(status)
                found += self._ask(name, "xa recover")
        return found

    def check(self, told: BaseException | None, where: object) -> bool:
        """After the work: all agrees, and nothing is left. Returns whether its rows are there."""
        found = ambient.ambient_variable.get()
        assert txpool.current() is None, f"{found} is ambient: {where}"
        assert ambient.ambient_variable.get() is None, f"{found} is ambient for who asks no more: {where}"
        until, scan_at = time.monotonic() + PATIENCE, 0.0
        while left := self.left():
            # Locks are let go by a thread; what is prepared, and has a finished mark, is ended by recovery. Its own
            # sessions are seen until the server has noticed that they were closed.
            if time.monotonic() >= scan_at:
                self._recovery.scan()
                scan_at = time.monotonic() + 1
            assert time.monotonic() < until, f"left is {left}: {where}"
        there = {bool(self._ask(name, f"select n from t where n = {self.number}")) for name in self._looking}
        if self._last and len(there) == 2:  # nobody knew how its commit has ended
            assert self.was_told_of_last(), f"a mix of outcomes, and no record of it: {where}"
            there = {False}
        assert len(there) == 1, f"a mix of outcomes: {where}"
        (committed,) = there
        said = [*getattr(told, "__notes__", ())] if told is not None else [": committed"]
        if isinstance(told, txpool.TransactionRolledBack):
            said.append(str(told))
        if any(": committed" in each for each in said):
            assert committed, f"{said}, and the rows are not there: {where}"
        if any(": rolled back" in each for each in said) or isinstance(told, txpool.TransactionRolledBack):
            assert not committed, f"{said}, and the rows are there: {where}"
        until = time.monotonic() + PATIENCE
        while lost := [str(each) for source in self.sources if (each := source.statistics()).size != each.idle]:
            assert time.monotonic() < until, f"not all connections are idle, {lost}: {where}"
            gc.collect()  # an exception's own frames may hold it
            time.sleep(0.005)
        return committed

    def was_told_of_last(self) -> bool:
        """Whether the log has a heuristic outcome of the last resource. It has none after this."""
        log = get_manager().log
        assert log is not None
        found = log.heuristics()
        for each in found:
            log.dismiss_heuristics(each.gtrid)
        return any(not each.bqual for each in found)

    def every_pool_has_its_size(self) -> None:
        """As many connections as there may be can be taken at once, and answer."""
        for source in self.sources:
            with ExitStack() as stack:
                for _ in range(SIZE):
                    connection = stack.enter_context(closing(source.connect(timeout=10)))
                    connection.cursor().execute("select 1")


@contextmanager
def world_of(name: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[World]:
    """The world of a driver, over a server of the tests'."""
    files: dict[str, str] = {}
    look: dict[str, Callable[[], Any]] = {}
    driver = name.partition(" ")[0]
    if driver in ("pymysql", "mysqlclient"):
        pytest.importorskip("MySQLdb" if driver == "mysqlclient" else "pymysql")
        server = request.getfixturevalue("mariadb")
        server.empty()
        os.environ[PASSWORD] = server.password
        for each in WORLDS[name]:
            server.execute("create table t (n int primary key)", database=each)
            files[each] = f"driver = {driver}\nurl = {server.url(each)}\npassword = ${{env:{PASSWORD}}}\n"
            look[each] = lambda each=each: server.connect(each)  # type: ignore[misc]
    else:
        databases: Databases = request.getfixturevalue("databases")
        os.environ[PASSWORD] = databases.server.password
        for each in WORLDS[name]:
            if each == "file":
                mode = {"alone": "local", "last": "last-resource"}.get(name.rpartition(" ")[2], "cmr")
                files[each] = f"driver = sqlite3\nmode = {mode}\nurl = sqlite:///{folder}/file.db\n"
                look[each] = lambda: sqlite3.connect(folder / "file.db", isolation_level=None, timeout=0)
                with closing(sqlite3.connect(folder / "file.db")) as file:
                    file.execute("pragma journal_mode = wal")
                    file.execute("create table t (n integer primary key)")
                continue
            databases.execute(each, "create table t (n integer primary key)")  # type: ignore[arg-type]
            files[each] = f"driver = psycopg\nurl = {databases.url(each)}\npassword = ${{env:{PASSWORD}}}\n"
            look[each] = lambda each=each: psycopg.connect(databases.dsn(each), autocommit=True)  # type: ignore[misc]
        if driver == "jdbc":
            places = JdbcPlaces(folder, request.getfixturevalue("jdbc_jars"), lambda _: databases.server)
            url = f"jdbc:postgresql://127.0.0.1:{databases.server.port}/two"
            files["two"] = places.lines("postgresql", url=url, Password=f"${{env:{PASSWORD}}}")
    level = logging.getLogger("txpool").level
    logging.getLogger("txpool").setLevel(logging.ERROR)  # each of thousands would be kept for a report
    # pytest would keep what an interrupt in a finaliser has raised, with its frames.
    shown, sys.unraisablehook = sys.unraisablehook, lambda _: None
    spark = sys.modules.pop("pyspark", None)  # if another test has loaded it, a JVM would be told of each transaction
    world = World(folder, files, look, last="last" in name)
    try:
        if name == "sqlite3":
            world.sources[0].xids_table().create()  # type: ignore[attr-defined]
        yield world
    finally:
        if spark is not None:
            sys.modules["pyspark"] = spark
        sys.unraisablehook = shown
        logging.getLogger("txpool").setLevel(level)
        world.close()
