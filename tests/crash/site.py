"""Three databases that prepare, two that are marked, a decision log: what is broken, and must end whole."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from recovery import RecoveryManager, ScanReport
from tests.support.log_places import PyMySQLConnection
from tests.support.mysql import MySQLServer
from tests.support.replicated import Replicated
from tests.support.waiting import until
from txpool.config.settings import RecoverySettings
from txpool.datasource import connect, find
from txpool.demo.server import EmbeddedPostgres
from txpool.errors import AlreadyDone, Error, HeuristicError, TransactionInDoubt
from txpool.setup.stores import initialise
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import TransactionManager, configure
from txpool.xid import PREFIX

PREPARING = ("one", "two", "three")
#: `book` is marked in PostgreSQL, `ledger` in SQLite.
SERVED = (*PREPARING, "book")
EVERYONE = (*SERVED, "ledger")
LOG = "log"  # the database of a decision log on a server
#: Stores in MariaDB and MySQL, each with the fixture of its server.
MYSQL_STORES = {"mariadb": "mariadb", "mysql": "mysql8"}
SERVER_STORES = ("sql", *MYSQL_STORES)
#: Names of variables; the second is for the decision log's server, which may be another.
PASSWORD = "TXPOOL_TEST_CRASH_PASSWORD"
LOG_PASSWORD = f"{PASSWORD}_LOG"
#: What the caller of a transaction may be told.
DONE, UNDONE, UNKNOWN, ALREADY = "committed", "rolled back", "in doubt", "already done"
#: By this name the server knows the sessions of transactions from those of recovery and of the tests.
APPLICATION = "txpool-under-attack"

# A log's own sessions, and the lease that tells who is alive, count too.
_IN_USE = f"select count(*) from pg_stat_activity where application_name similar to '{APPLICATION}|txpool (log|lease)%'"
_MYSQL_IN_USE = f"select count(*) from information_schema.processlist where db = '{LOG}' and id <> connection_id()"
_QUIET = f"""
    do $$ begin
        while ({_IN_USE}) > 0 loop perform pg_sleep(0.005); perform pg_stat_clear_snapshot(); end loop;
    end $$
"""

#: A transaction without an id.
_UNNAMED: Mapping[str, Any] = {}
#: How long this process may take to settle what is in doubt, in seconds.
_TIMEOUT = 60.0


class CrashSite:
    """Its files in a folder, its databases on a server; read on connections of its own, past txpool.

    The decision log is in the folder (`store` sqlite), or in a database of `log_server`: the same server where none is
    given (sql), or one of MariaDB or MySQL.
    """

    def __init__(
        self,
        folder: Path,
        server: EmbeddedPostgres,
        *,
        store: str = "sqlite",
        log_server: EmbeddedPostgres | MySQLServer | Replicated | None = None,
        immediate_cleanup: bool = True,
    ) -> None:
        self.folder = folder
        self.server = server
        self.log_server = log_server or server
        self._store = store
        self._sessions: dict[str, Any] = {}
        os.environ[PASSWORD] = server.password
        os.environ[LOG_PASSWORD] = self.log_server.password
        self.empty()
        (folder / "recovery").mkdir()
        eager = "\ncmr.immediate-cleanup = true" if immediate_cleanup else ""
        for name in SERVED:
            self.describe(name, more=eager if name == "book" else "")
        ledger = f"driver = sqlite3\nmode = cmr\nurl = sqlite:///{folder}/ledger.db"
        self.write("ledger", ledger + eager)
        self.write("recovery/ledger", ledger)
        self.describe_log()
        self.write_recovery(EVERYONE)
        with closing(sqlite3.connect(folder / "ledger.db")) as file:
            file.execute("pragma journal_mode = wal")
            file.execute("create table t (n integer)")
        initialise(RecoverySettings.load(self.conf))

    @property
    def conf(self) -> Path:
        return self.folder / "recovery" / "recovery.properties"

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.properties").write_text(text + "\n")

    def write_recovery(self, names: Collection[str]) -> None:
        """Recovery's configuration, over these datasources."""
        self.write(
            "recovery/recovery",
            f"{self._common(self._log)}recovery.backoff = 0\n"
            f"datasources = {', '.join(f'{name}.properties' for name in names)}\n"
            "recovery.lock-timeout = 100ms\nrecovery.period = 100ms",
        )

    def describe_log(self, *, port: int | None = None, options: str = "") -> None:
        """The decision log for transactions, through another port if one is given; recovery's own way is direct."""
        through = self._log.replace(f":{self.log_server.port}/", f":{port}/") if port else self._log
        self.write("txpool", self._common(f"{through}{options}"))

    @property
    def in_folder(self) -> bool:
        """Whether the log is in the folder."""
        return self._store == "sqlite"

    @property
    def _log(self) -> str:
        return f"sqlite:///{self.folder}/txlog" if self._store == "sqlite" else self.log_server.url(LOG)

    def _common(self, log: str) -> str:
        password = "" if self._store == "sqlite" else f"log.password = ${{env:{LOG_PASSWORD}}}\n"
        return f"node.name = etl-1\nlog.url = {log}\n{password}"

    def describe(self, name: str, *, port: int | None = None, user: str | None = None, more: str = "") -> None:
        """A datasource's file for transactions, through another port if one is given, and recovery's own, direct."""
        direct = self.server.url(name)
        through = direct.replace(f":{self.server.port}/", f":{port}/") if port else direct
        who = f"\nuser = {user}" if user else ""
        self._describe(name, name, through, who)
        self._describe(f"recovery/{name}", name, direct, who)
        with (self.folder / f"{name}.properties").open("a") as file:
            file.write(f"driver.application_name = {APPLICATION}\ndriver.connect_timeout = 2\n{more}\n")

    def _describe(self, path: str, name: str, url: str, who: str = "") -> None:
        mode = "cmr" if name == "book" else "xa"
        self.write(path, f"driver = psycopg\nmode = {mode}\nurl = {url}\npassword = ${{env:{PASSWORD}}}{who}")

    def heal(self) -> None:
        """The servers run, what was on its way has been executed, and recovery goes straight to all of them."""
        self.server.start()
        self.log_server.start()
        for name in SERVED:
            self._describe(f"recovery/{name}", name, self.server.url(name))
        self.wait_for_sessions()

    # -- transactions and recovery ------------------------------------------------------------------------------

    @contextmanager
    def coordinator(self) -> Iterator[TransactionManager]:
        """This process's transactions go on in this world; at its end the process is dead, as far as the log knows."""
        manager = configure(self.folder / "txpool.properties")
        try:
            yield manager
        finally:
            self.close_datasources()
            manager.close()

    def wait_until_resolved(self, manager: TransactionManager) -> None:
        """Wait until nothing is in doubt in this process."""
        until(lambda: not manager.in_doubt, what="still in doubt")

    def close_datasources(self) -> None:
        for name in EVERYONE:
            find(self.folder / f"{name}.properties").close()

    def insert(self, number: int, names: Collection[str]) -> None:
        """One row in each datasource, as part of the ambient transaction."""
        for name in names:
            connect(self.folder / f"{name}.properties").cursor().execute(f"insert into t values ({number})")

    def read(self, names: Collection[str]) -> None:
        """Read each datasource, as part of the ambient transaction."""
        for name in names:
            connect(self.folder / f"{name}.properties").cursor().execute("select count(*) from t").fetchall()

    def attempt(
        self, number: int, *names: str, doing: Callable[[], object] = lambda: None, once: Mapping[str, Any] = _UNNAMED
    ) -> str:
        """One transaction that does so, and what its caller is told of its end."""
        return outcome_of(lambda: self._transaction(number, names, doing, once))

    def _transaction(
        self, number: int, names: Collection[str], doing: Callable[[], object], once: Mapping[str, Any]
    ) -> None:
        with transaction(**once):
            self.insert(number, names)
            doing()

    def scan(self) -> ScanReport:
        """One scan of recovery, by its own configuration."""
        with closing(RecoveryManager(self.conf)) as manager:
            return manager.scan()

    def wait_for_sessions(self) -> None:
        """Wait until no transaction's session is left: what was on its way in them has been executed."""
        self.session("one").execute(_QUIET)
        if self._store not in MYSQL_STORES:
            self.session(LOG).execute(_QUIET)
            return
        while self.session(LOG).execute(_MYSQL_IN_USE).fetchone() != (0,):
            time.sleep(0.005)

    # -- what the databases say ---------------------------------------------------------------------------------

    def session(self, name: str) -> Any:
        """A connection that only the tests use."""
        known = self._sessions.get(name)
        if known is not None:
            with suppress(psycopg.Error, pymysql.Error):
                known.execute("select 1")
                return known
            with suppress(pymysql.Error):
                known.close()
        if name == LOG and isinstance(self.log_server, MySQLServer):
            self._sessions[name] = PyMySQLConnection(self.log_server.connect(LOG))
            return self._sessions[name]
        server = self.log_server if name == LOG else self.server
        self._sessions[name] = psycopg.connect(server.dsn(name), autocommit=True)
        return self._sessions[name]

    def numbers(self) -> dict[str, list[int]]:
        """The rows of each database."""
        found = {name: [n for (n,) in self.session(name).execute("select n from t order by n")] for name in SERVED}
        with closing(sqlite3.connect(self.folder / "ledger.db")) as file:
            return found | {"ledger": [n for (n,) in file.execute("select n from t order by n")]}

    def holders(self, number: int) -> set[str]:
        """The databases that hold a row of this number."""
        return {name for name, numbers in self.numbers().items() if number in numbers}

    def prepared(self) -> list[str]:
        """Our prepared branches, anywhere on the server."""
        query = f"select gid from pg_prepared_xacts where gid like '{PREFIX}%' order by gid"
        return [gid for (gid,) in self.session("one").execute(query)]

    def marks(self) -> list[tuple[str, str]]:
        """Rows and tombstones: the gtrid, and `commit` or `abort`."""
        query = f"select xid, kind from xids where xid <> '{PREFIX}:identity' order by xid"
        with closing(sqlite3.connect(self.folder / "ledger.db")) as file:
            return [*self.session("book").execute(query), *file.execute(query)]

    def kept(self) -> dict[str, int]:
        """What the decision log keeps, table by table."""
        tables = ("decisions", "finished", "pointers", "heuristics")
        if self._store == "sqlite":
            with closing(sqlite3.connect(self.folder / "txlog" / "log.db")) as log:
                found = {table: log.execute(f"select count(*) from {table}").fetchone()[0] for table in tables}
        else:
            counts = [f"(select count(*) from txpool_{table})" for table in tables]
            rows = self.session(LOG).execute(f"select {', '.join(counts)}").fetchall()
            found = dict(zip(tables, rows[0], strict=True))
        return {table: count for table, count in found.items() if count}

    def assert_nothing_is_left(self) -> None:
        """Nothing prepared, no row, tombstone, decision, mark, heuristic: so it must be once all processes are dead."""
        left = self.prepared(), self.marks(), self.kept()
        assert left == ([], [], {}), f"left behind: {left}"

    def assert_settled(self, number: int, names: Collection[str], said: str = UNKNOWN) -> bool:
        """All or none hold the row, as the caller was told, and nothing is left; whether it is committed."""
        holders = self.holders(number)
        assert holders in (set(), set(names)), f"{said}, and only {holders} of {names} hold it"
        committed = bool(holders)
        assert said in (UNKNOWN, DONE if committed else UNDONE)
        self.assert_nothing_is_left()
        return committed

    # -- its beginning and end ----------------------------------------------------------------------------------

    def empty(self) -> None:
        """Tables as they are in the beginning, on a server where nothing is prepared."""
        if isinstance(self.log_server, MySQLServer):
            self.log_server.execute(f"drop database if exists {LOG}", f"create database {LOG}")
        else:
            self.session(LOG).execute("drop schema public cascade; create schema public")
        for name in SERVED:
            session = self.session(name)
            for (gid,) in session.execute(
                "select gid from pg_prepared_xacts where database = current_database()"
            ).fetchall():
                session.execute(psycopg.sql.SQL("rollback prepared {}").format(gid))
            session.execute(
                "drop schema if exists txpool_spark cascade; drop schema public cascade; create schema public"
            )
            session.execute("create table t (n integer)")

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()


def outcome_of(work: Callable[[], object]) -> str:
    """What the caller of a transaction learns: committed, rolled back, in doubt, or the heuristic outcome's name.

    That its work was done before is no end of it, and is raised.
    """
    try:
        work()
    except AlreadyDone:
        raise
    except TransactionInDoubt:
        return UNKNOWN
    except HeuristicError as error:
        return type(error).__name__
    except Error:
        return UNDONE
    return DONE
