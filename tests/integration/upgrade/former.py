"""What the former version (commit ce25e2e) has left: two logs, marks, tombstones, and branches in doubt.

`written/` was made once, by running that commit: processes of its own that its failpoints killed at
`coordinator.prepared`, `coordinator.decided` and `marked.committed`, its recovery over half of the datasources, its
`suspend` and `resume`, and, where no process dies so, its own log's `fence`, `finish`, `abort`, `point`, `note` and
`expire`; then its tables were dumped, and the name of the host replaced. One folder has a sqlite log, the other a log
on a server. A branch cannot be dumped: the tests prepare it anew, under its name and by the same role. What names the
servers of that time, a log's file or a transaction's id stands there as `@two@`, `@inode@` or `@763@`.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from tests.support.repository import ROOT
from txpool.log.sqlite import folder

APP = "app"
#: The name of a variable that has the passwords of the application's role and of the server's superuser.
PASSWORD = "TXPOOL_TEST_UPGRADE_PASSWORD"
_WRITTEN = Path(__file__).with_name("written")
#: What each database holds once all is recovered: each transaction has written its number into every one of its own.
COMMITTED = {"one": [1, 3, 7, 9], "two": [1, 3, 7, 9], "ledger": [7]}
#: Another node's, and one whose incarnation no log knows.
LEFT_ALONE = ["txp1:etl-1:unknown00000:1:0:one:L", "txp1:etl-9:abcdefghijkl:1:0:one:L"]
_TABLES = ("meta", "incarnations", "decisions", "finished", "pointers", "heuristics", "expired", "memos")
#: Every datasource of that time.
DATASOURCES = ("one", "two", "book", "ledger")


class Branch(NamedTuple):
    """As `branches.txt` has it: its transaction's id of that time, what it writes, and whether it is still prepared."""

    gid: str
    database: str
    was: str
    number: str
    state: str


class Former:
    """A folder, and the databases of a server, as the former version has left them under a log in a `store`."""

    def __init__(self, place: Path, databases: Any, store: str) -> None:
        self.folder = place
        self.databases = databases
        self.store = store
        self._names: dict[str, str] = {}
        os.environ[PASSWORD] = databases.server.password
        for name in ("one", "two"):
            databases.execute(name, f"grant usage, create on schema public to {APP}")
            self.as_app(name, "create table t (id int)")
            identity = "(select system_identifier from pg_control_system()) || '/' || oid"
            found = databases.rows(name, f"select {identity} from pg_database where datname = current_database()")
            self._names[name] = found[0][0]
        for branch in self.branches():
            self._prepare(branch)
        self.as_app("two", self.read("book.sql"))
        with closing(sqlite3.connect(place / "ledger.db")) as ledger:
            ledger.executescript(self.read("ledger.sql"))
        self._write_log()
        self.configure()

    def branches(self) -> list[Branch]:
        return [Branch(*line.split()) for line in (_WRITTEN / self.store / "branches.txt").read_text().splitlines()]

    def read(self, name: str) -> str:
        """A file of that time, with the names that things have here."""
        text = (_WRITTEN / self.store / name).read_text()
        return re.sub("@([a-z0-9]+)@", lambda found: self._names[found[1]], text)

    def configure(
        self,
        *,
        user: str = APP,
        recovery_user: str = "",
        owners: str = "",
        node: str = "etl-1",
        nodes: str = "",
        more: str = "",
    ) -> None:
        """Write all files anew: with the application's user, and another for recovery where one is given."""
        secret = f"password = ${{env:{PASSWORD}}}"
        recovery = f"\nrecovery.user = {recovery_user}\nrecovery.{secret}" if recovery_user else ""
        for name, database in (("one", "one"), ("two", "two"), ("book", "two")):
            mode = "cmr" if name == "book" else "xa"
            counting = f"\nprepared.owners = {owners}" if owners else ""
            where = f"url = {self.url(database, user)}\n{secret}{counting}"
            self.write(name, f"driver = psycopg\nmode = {mode}\n{where}{recovery}")
        self.write("ledger", "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db")
        log = "log.url = sqlite:///txlog" if self.store == "sqlite" else f"log.url = {self.url('one')}\nlog.{secret}"
        self.write("txpool", f"node.name = {node}\n{log}")
        files = ", ".join(f"{name}.properties" for name in DATASOURCES)
        self.write(
            "recovery",
            f"node.name = {node}\n{log}\ndatasources = {files}\nrecovery.backoff = 0\nrecovery.period = 3600\n"
            + (f"recovery.nodes = {nodes}\n" if nodes else "")
            + more,
        )

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.properties").write_text(text + "\n")

    @property
    def conf(self) -> Path:
        return self.folder / "recovery.properties"

    def url(self, database: str, user: str = APP) -> str:
        """Where a database is, for the application's role or another."""
        return str(self.databases.url(database)).replace(f"{self.databases.server.user}@", f"{user}@")

    @property
    def log_url(self) -> str:
        """Of the log, without a secret."""
        return f"sqlite:///{self.folder / 'txlog'}" if self.store == "sqlite" else self.url("one")

    @contextmanager
    def session(self, database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A connection of the application's role."""
        dsn = psycopg.conninfo.make_conninfo(self.databases.dsn(database), user=APP)
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield connection

    def as_app(self, database: str, statements: str) -> None:
        with self.session(database) as connection:
            connection.execute(statements)  # type: ignore[call-overload]

    def rows(self) -> dict[str, list[int]]:
        """What each database holds, in its own word."""
        query = "select id from t order by id"
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            found = {"ledger": [number for (number,) in ledger.execute(query)]}
        return {name: [number for (number,) in self.databases.rows(name, query)] for name in ("one", "two")} | found

    def marks(self) -> dict[str, list[str]]:
        """The rows and tombstones of the marked datasources, and their identities' keys."""
        query = "select xid from xids order by xid"
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            found = {"ledger": [xid for (xid,) in ledger.execute(query)]}
        return found | {"book": [xid for (xid,) in self.databases.rows("two", query)]}

    def kept(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        """What the log has in one of its tables, in the order of its rows."""
        if self.store == "sqlite":
            with closing(sqlite3.connect(self.folder / "txlog" / "log.db")) as log:
                return sorted(log.execute(f"select {columns} from {table}").fetchall())
        return sorted(self.databases.rows("one", f"select {columns} from txpool_{table}"))

    def stored(self) -> dict[str, Any]:
        """Whatever is stored anywhere."""
        found: dict[str, Any] = {table: self.kept(table) for table in _TABLES}
        return found | {"marks": self.marks(), "databases": (self.rows(), self.databases.prepared())}

    def keep_memo(self, kind: str, name: str, text: str) -> None:
        """Write a memo into the log, as the former version and this one do."""
        self.in_log("insert into {memos} (kind, name, text, made) values (%s, %s, %s, 0)", kind, name, text)

    def in_log(self, statement: str, *parameters: object) -> None:
        """Execute a statement in the log; the names of its tables are in braces."""
        names = ("memos", "meta", "incarnations", "decisions")
        if self.store == "sqlite":
            text = statement.format_map({name: name for name in names}).replace("%s", "?")
            with closing(sqlite3.connect(self.folder / "txlog" / "log.db")) as log, log:
                log.execute(text, parameters)
            return
        with self.session("one") as connection:
            text = statement.format_map({name: f"txpool_{name}" for name in names})
            connection.execute(text, parameters)  # type: ignore[call-overload]

    def start(self, source: str, *arguments: str, root: str = "", failpoints: str = "") -> subprocess.Popen[str]:
        """A child in the folder, of this version, or of that in the folder `root`."""
        return subprocess.Popen(
            [sys.executable, *(("-c", textwrap.dedent(source)) if source else ()), *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": root or str(ROOT), "TXPOOL_FAILPOINTS": failpoints},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def disconnect(self) -> None:
        """End the sessions of killed processes, which outlive them for a moment."""
        for name in ("one", "two"):
            self.databases.rows(
                name,
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()",
            )

    def _prepare(self, branch: Branch) -> None:
        with self.session(branch.database) as connection:
            connection.autocommit = False
            connection.execute("insert into t values (%s)", [branch.number])
            (self._names[branch.was],) = connection.execute("select pg_current_xact_id()::text").fetchone() or ("",)
            if branch.state == "committed":
                connection.commit()
            else:
                connection.execute(sql.SQL("prepare transaction {}").format(branch.gid))

    def _write_log(self) -> None:
        if self.store == "server":
            self.as_app("one", self.read("log.sql"))
            return
        place = self.folder / "txlog"
        (place / "incarnations").mkdir(parents=True, mode=0o700)
        place.chmod(0o700)
        database = place / "log.db"
        database.touch(mode=0o600)
        self._names |= folder._identity(database)
        with closing(sqlite3.connect(database, isolation_level=None)) as log:
            log.executescript(self.read("log.sql"))
            log.execute("pragma journal_mode = wal")
        for name, fenced in self.kept("incarnations", "name, fenced"):
            if not fenced:  # its lock, which nobody holds any more
                (place / "incarnations" / f"{name}.lock").touch()


#: Writes a number into each datasource named, in one transaction.
WRITER = """
    import sys
    from txpool.datasource import connect
    from txpool.tm.manager import configure
    from txpool.tm.demarcation.block import transaction

    configure("txpool.properties")
    with transaction():
        for name in sys.argv[2:]:
            connect(f"{name}.properties").cursor().execute(f"insert into t values ({sys.argv[1]})")
"""
Make = Callable[[str], Former]


def drop(databases: Any) -> None:
    """Whatever is left of the application's role."""
    for name in ("one", "two"):
        query = "select gid from pg_prepared_xacts where database = current_database()"
        with psycopg.connect(databases.dsn(name), autocommit=True) as connection:
            for (gid,) in connection.execute(query).fetchall():
                connection.execute(sql.SQL("rollback prepared {}").format(gid))
            connection.execute(f"drop owned by {APP} cascade")
    databases.execute("one", f"drop role {APP}")


def texts(rows: list[tuple[Any, ...]]) -> list[Any]:
    """The JSON in the last column."""
    return [json.loads(row[-1]) for row in rows]
