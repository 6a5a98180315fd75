"""Real databases for recovery: two that prepare, one marked, a decision log; and a process that dies in between."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from recovery import RecoveryManager
from recovery.setup import initialise
from txpool.settings import RecoverySettings

PASSWORD = "TXPOOL_TEST_RECOVERY_PASSWORD"  # the name of a variable
ROOT = Path(__file__).parents[2]

#: Writes one row into each datasource named, in one transaction.
WRITER = """
    import sys
    from txpool.datasource import connect
    from txpool.manager import configure
    from txpool.scope import transaction

    configure("txpool.properties")
    with transaction():
        for name in sys.argv[1:]:
            connect(f"{name}.properties").cursor().execute("insert into t values (1)")
    print("returned", flush=True)
"""

#: The same, but for its end: it says its gtrid and waits, prepared and undecided, for as long as it lives.
HOLDER = WRITER.replace("transaction():", "transaction() as tx:\n        print(tx.gtrid, flush=True)")


class Site:
    """The configuration in a folder, and the databases behind it."""

    def __init__(self, folder: Path, databases: Any, *, log: str = "log.url = sqlite:///txlog") -> None:
        self.folder = folder
        self.databases = databases
        os.environ[PASSWORD] = databases.server.password
        for name in ("one", "two"):
            databases.execute(name, "create table t (id int)")
            self.write(name, f"driver = psycopg\nurl = {databases.url(name)}\npassword = ${{env:{PASSWORD}}}")
        self.write("ledger", "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db")
        with closing(sqlite3.connect(folder / "ledger.db")) as ledger:
            ledger.execute("create table t (id int)")
        common = f"node.name = etl-1\n{log}"
        self.write("txpool", common)
        self.write(
            "recovery",
            f"{common}\ndatasources = one.properties, two.properties, ledger.properties\n"
            "recovery.backoff = 0\nrecovery.lock-timeout = 500ms\nrecovery.period = 3600",
        )
        initialise(RecoverySettings.load(self.conf))

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
            return [kind for (kind,) in ledger.execute("select kind from xids")]

    def kept(self) -> dict[str, int]:
        """What the decision log keeps, table by table."""
        with closing(sqlite3.connect(self.folder / "txlog" / "log.db")) as log:
            tables = ("decisions", "finished", "pointers", "heuristics")
            found = {table: log.execute(f"select count(*) from {table}").fetchone()[0] for table in tables}
        return {table: count for table, count in found.items() if count}

    def process(self, source: str, *arguments: str, failpoints: str = "", env: Mapping[str, str] | None = None) -> Any:
        """A child of the folder's; its stdout and stderr are pipes."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TXPOOL_FAILPOINTS": failpoints} | dict(env or {})
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def killed(self, source: str, *arguments: str, failpoints: str) -> None:
        """Run a child that one of its failpoints kills."""
        process = self.process(source, *arguments, failpoints=failpoints)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, f"{process.returncode}\n{output}\n{errors}"
        # Its sessions outlive it for a moment, and what they are at may land meanwhile: wait until they are gone.
        for name in ("one", "two"):
            self.databases.rows(
                name,
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()",
            )

    def command(self, *arguments: str, failpoints: str = "") -> subprocess.CompletedProcess[str]:
        """`txpool-recovery` with this configuration."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TXPOOL_FAILPOINTS": failpoints, "COLUMNS": "250"}
        return subprocess.run(
            [sys.executable, "-m", "recovery", *arguments, "--conf", str(self.conf)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
