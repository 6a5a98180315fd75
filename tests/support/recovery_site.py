"""Real databases for recovery: two that prepare, one marked, a decision log; and processes that die in between."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from recovery import RecoveryManager
from tests.support import preloaded
from tests.support.log_places import LogPlace
from tests.support.repository import ROOT
from txpool.config.settings import RecoverySettings
from txpool.datasource import opened
from txpool.setup.stores import initialise

PASSWORD = "TXPOOL_TEST_RECOVERY_PASSWORD"  # the name of a variable
LOG_PASSWORD = f"{PASSWORD}_LOG"
_TIMEOUT = 240.0
#: The databases that prepare.
BOTH = ("one", "two")

#: Writes one row into each datasource named, in one transaction.
WRITER = """
    import sys
    from txpool.datasource import connect
    from txpool.tm.manager import configure
    from txpool.tm.demarcation.block import transaction

    configure("txpool.properties")
    with transaction():
        for name in sys.argv[1:]:
            connect(f"{name}.properties").cursor().execute("insert into t values (1)")
    print("returned", flush=True)
"""

#: The same, but for its end: it says its gtrid and waits, prepared and undecided, for as long as it lives.
HOLDER = WRITER.replace("transaction():", "transaction() as tx:\n        print(tx.gtrid, flush=True)")


def connected_first(source: str) -> str:
    """The same process; it connects before its transaction begins, and so before its timeout runs."""
    names = re.search(r"for name in (sys\.argv\[\d:\]):", source)
    assert names is not None
    connect = f'for name in {names[1]}:\n        connect(f"{{name}}.properties").close()\n    with transaction()'
    return source.replace("with transaction()", connect)


class Site:
    """The configuration in a folder, and the databases behind it; the log is there, in database one, or in `log`."""

    def __init__(self, folder: Path, databases: Any, *, store: str = "sqlite", log: LogPlace | None = None) -> None:
        # Recovery also uses what its own process has opened: an earlier test may have left some open.
        for datasource in opened():
            datasource.close()
        self.folder = folder
        self.databases = databases
        self.store = store
        os.environ[PASSWORD] = databases.server.password
        #: Where a log on a server is, if that is another one.
        self.log = log
        os.environ[LOG_PASSWORD] = databases.server.password if log is None else log.password
        url = databases.url("one") if log is None else log.url()
        served = f"log.url = {url}\nlog.password = ${{env:{LOG_PASSWORD}}}"
        self._log = "log.url = sqlite:///txlog" if store == "sqlite" else served
        for name in ("one", "two"):
            databases.execute(name, "create table t (id int)")
            self.write(name, f"driver = psycopg\nurl = {databases.url(name)}\npassword = ${{env:{PASSWORD}}}")
        self.write("ledger", "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db")
        with closing(sqlite3.connect(folder / "ledger.db")) as ledger:
            ledger.execute("create table t (id int)")
        self.write("txpool", f"node.name = etl-1\n{self._log}")
        self.host("recovery")
        initialise(RecoverySettings.load(self.conf))

    def host(self, conf: str, node: str = "etl-1", nodes: str = "", period: str = "3600") -> None:
        """Write the configuration of recovery, as it runs on some host under the name of a node."""
        self.write(
            conf,
            f"node.name = {node}\n{self._log}\ndatasources = one.properties, two.properties, ledger.properties\n"
            f"recovery.backoff = 0\nrecovery.lock-timeout = 500ms\nrecovery.period = {period}\n"
            + (f"recovery.nodes = {nodes}" if nodes else ""),
        )

    @property
    def conf(self) -> Path:
        return self.folder / "recovery.properties"

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.properties").write_text(text + "\n")

    def manager(self, **options: Any) -> RecoveryManager:
        return RecoveryManager(self.conf, **options)

    def counts(self) -> dict[str, int]:
        """How many rows each database holds, in its own word."""
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            found = {"ledger": ledger.execute("select count(*) from t").fetchone()[0]}
        return found | {name: self.databases.rows(name, "select count(*) from t")[0][0] for name in ("one", "two")}

    def marks(self) -> list[str]:
        """The rows and tombstones of the marked datasource."""
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            return [kind for (kind,) in ledger.execute("select kind from xids where xid <> 'txp1:identity'")]

    def kept(self) -> dict[str, int]:
        """What the decision log keeps, table by table."""
        tables = ("decisions", "finished", "pointers", "heuristics")
        if self.store == "sqlite":
            with closing(sqlite3.connect(self.folder / "txlog" / "log.db")) as log:
                found = {table: log.execute(f"select count(*) from {table}").fetchone()[0] for table in tables}
        else:
            counts = [f"(select count(*) from txpool_{table})" for table in tables]
            rows = (self.log or self.databases).rows("one", f"select {', '.join(counts)}")
            found = dict(zip(tables, rows[0], strict=True))
        return {table: count for table, count in found.items() if count}

    def process(self, source: str, *arguments: str, failpoints: str = "", env: Mapping[str, str] | None = None) -> Any:
        """A child of the folder's; its stdout and stderr are pipes."""
        return self._child(
            "-c", textwrap.dedent(source), *arguments, env={"TXPOOL_FAILPOINTS": failpoints} | dict(env or {})
        )

    def interpreter(self, source: str) -> subprocess.Popen[str]:
        """The same from an interpreter's own beginning, for a test that is about that, or about its end."""
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source)],
            cwd=self.folder,
            env=self._environment({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def daemon(self) -> Any:
        """`txpool-recovery run` with this configuration, in the same way."""
        return self._child("-m", "recovery", "run", "--conf", "recovery.properties", env={})

    def _child(self, *arguments: str, env: Mapping[str, str]) -> Any:
        process = preloaded.start(*arguments, cwd=self.folder, env=self._environment(env))
        process.stdin.close()
        return process

    @staticmethod
    def _environment(env: Mapping[str, str]) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(ROOT), "TXPOOL_FAILPOINTS": ""} | dict(env)

    def killed(self, source: str, *arguments: str, failpoints: str) -> None:
        """Run a child that one of its failpoints kills."""
        process = self.process(source, *arguments, failpoints=failpoints)
        output, errors = process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL, f"{process.returncode}\n{output}\n{errors}"
        # Its sessions outlive it for a moment, and what they are at may land meanwhile: wait until they are gone.
        for name in ("one", "two"):
            self.databases.rows(
                name,
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()",
            )
        if self.log is not None:
            self.log.cut_sessions(leases=True)

    def command(
        self, *arguments: str, failpoints: str = "", conf: str = "recovery", columns: int = 250, answer: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """`txpool-recovery` with this configuration, or another one of the folder."""
        environment = self._environment({"TXPOOL_FAILPOINTS": failpoints, "COLUMNS": str(columns)})
        command = ("-m", "recovery", *arguments, "--conf", f"{conf}.properties")
        return preloaded.run(*command, cwd=self.folder, env=environment, stdin=answer)


def prepare(site: Site, database: str, gid: str) -> None:
    """By hand, as any program could."""
    with psycopg.connect(site.databases.dsn(database)) as connection:
        connection.execute("insert into t values (1)")
        connection.execute(sql.SQL("prepare transaction {}").format(gid))


def end(site: Site, database: str, verb: str, gid: str) -> None:
    with psycopg.connect(site.databases.dsn(database), autocommit=True) as connection:
        connection.execute(sql.SQL(f"{verb} prepared {{}}").format(gid))


# -- the daemon and its page ----------------------------------------------------------------------------------------

DAEMON = "import sys; from recovery.cli import app; app(['run', '--conf', 'recovery.properties'])"
#: What the daemon says of its page.
SERVED = r"the status page is at (\S+)"


def extend(site: Site, *lines: str) -> None:
    site.write("recovery", "\n".join([site.conf.read_text().strip(), *lines]))


def get(url: str, timeout: float = 100) -> str:
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return str(answer.read().decode())


def address_in(said: str) -> str:
    found = re.search(SERVED, said)
    assert found is not None
    return found[1]


def until(process: Any, pattern: str) -> str:
    """What the daemon says until a line has the pattern, with that line."""
    said = ""
    while not re.search(pattern, said):
        line = process.stderr.readline()
        assert line, said
        said += line
    return said


def lines_until(process: Any, *texts: str) -> list[str]:
    found = []
    for line in process.stderr:
        found.append(line)
        if all(any(text in each for each in found) for text in texts):
            return found
    raise AssertionError(f"the daemon ended: {found}")


@contextmanager
def daemon(site: Site) -> Iterator[tuple[Any, str]]:
    """The daemon, once its first scan is through, and the address of its page. Whoever waits for it in vain ends it."""
    process = site.daemon()
    deadline = threading.Timer(_TIMEOUT, process.kill)
    deadline.start()
    try:
        url = address_in(until(process, SERVED))
        while json.loads(get(f"{url}api/in-doubt"))["at"] is None:
            assert process.poll() is None
        yield process, url
    finally:
        deadline.cancel()
        process.kill()
        process.communicate()
