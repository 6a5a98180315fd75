"""Two databases, a log with a standby, a cluster and the driver of the moment, for the test that breaks them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.crash.cluster import Cluster
from tests.crash.cluster_driver import TABLE, zombie
from tests.crash.cluster_process import CORES, KILLED, PATIENCE, ROWS, Driver
from tests.crash.evidence import SEED
from tests.crash.hosts import Network
from tests.crash.judged import require_atomic
from tests.crash.site import DONE, LOG, UNDONE, UNKNOWN
from tests.support.children import WITH_ITS_PARENT
from tests.support.replicated import Replicated
from tests.support.waiting import until
from txpool.config.settings import RecoverySettings
from txpool.demo.server import EmbeddedPostgres
from txpool.setup.stores import initialise

NAMES = ("one", "two")


@dataclass(frozen=True)
class Strike:
    """What is done to a load's attempt, once it is due: before the driver may commit, or while its branches end."""

    act: Callable[[], object]
    due: Callable[[], bool]
    while_ending: bool = False


class Site:
    """Two databases, a log with a standby, a cluster, a recovery daemon, and the driver of the moment."""

    def __init__(
        self, folder: Path, network: Network, environment: dict[str, str], partitions: int, stack: ExitStack
    ) -> None:
        self.folder, self.network, self.environment, self.partitions = folder, network, environment, partitions
        self.chance = random.Random(SEED)
        #: What was done to it.
        self.struck: Counter[str] = Counter()
        #: The loads of which a caller was told that they have committed, and how often any was begun.
        self.committed: set[int] = set()
        self.attempts = 0
        #: Those that were begun at all.
        self.loads: set[int] = set()
        settings = {
            "listen_addresses": f"127.0.0.1, {network.address}",
            "fsync": "off",
            "max_connections": "300",
            "max_prepared_transactions": str(4 * partitions + 100),
        }
        self.server = stack.enter_context(EmbeddedPostgres(databases=NAMES, settings=settings))
        assert self.server.folder is not None
        with (self.server.folder / "data" / "pg_hba.conf").open("a") as file:
            file.writelines(f"host all all {host.address}/32 scram-sha-256\n" for host in network.hosts)
            file.write(f"host all all {network.address}/32 scram-sha-256\n")
        self.log = stack.enter_context(Replicated(LOG))
        self._describe()
        self.databases = {name: psycopg.connect(self.server.dsn(name), autocommit=True) for name in NAMES}
        for connection in self.databases.values():
            stack.callback(connection.close)
            # No key: what is written twice shows.
            connection.execute(f"create table {TABLE} (load int, id bigint); select pg_reload_conf()")
        initialise(RecoverySettings.load(self.conf))
        self.cluster = stack.enter_context(Cluster(network, environment, folder, CORES))
        self._daemon: subprocess.Popen[bytes] | None = None
        self._driver: Driver | None = None
        stack.callback(self.end)
        self.start_daemon()

    @property
    def conf(self) -> Path:
        return self.folder / "recovery.properties"

    def _describe(self) -> None:
        self._secret("secret", self.server.password)
        self._secret("log-secret", self.log.password)
        for name in NAMES:
            url = self.server.url(name).replace("127.0.0.1", self.network.address)
            self._write(name, f"name = {name}\ndriver = psycopg\nurl = {url}\npassword = ${{file:secret}}")
        common = f"node.name = driver\nlog.url = {self.log.url(LOG)}\nlog.password = ${{file:log-secret}}"
        self._write("txpool", common)
        files = ", ".join(f"{name}.properties" for name in NAMES)
        self._write("recovery", f"{common}\ndatasources = {files}\nrecovery.period = 1\nrecovery.backoff = 0")

    def _secret(self, name: str, text: str) -> None:
        (self.folder / name).touch(0o600)
        (self.folder / name).write_text(text)

    def _write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.properties").write_text(f"{text}\n")

    # -- the driver and the daemon ------------------------------------------------------------------------------

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self)
            assert self._driver.hear() == "up", (self.folder / "driver.err").read_text()[-4000:]
        return self._driver

    def end_driver(self) -> None:
        if self._driver is not None:
            self._driver.end()
            self._bury()

    def _bury(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def start_daemon(self) -> None:
        with (self.folder / "daemon.err").open("ab") as errors:
            command = [*WITH_ITS_PARENT, sys.executable, "-m", "recovery", "run", "--conf", str(self.conf)]
            self._daemon = subprocess.Popen(command, cwd=self.folder, env=os.environ | self.environment, stderr=errors)

    def kill_daemon(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()
            assert self._daemon.wait() == -signal.SIGKILL, (self.folder / "daemon.err").read_text()[-4000:]
            self._daemon = None

    def end(self) -> None:
        """End the driver and the daemon, and make the network whole."""
        self._bury()
        self.kill_daemon()
        self.heal()

    # -- loads --------------------------------------------------------------------------------------------------

    def attempt(self, load: int, *strikes: Strike) -> str:
        """Let the driver write a load once, under these strikes; what it says of its end, or that it was killed.

        Those that are not for the end fall before it may commit.
        """
        driver, ending, pending = self.driver, False, [*strikes]
        deadline = time.monotonic() + PATIENCE
        driver.tell(load)
        self.attempts += 1
        self.loads.add(load)
        while True:
            assert time.monotonic() < deadline, f"load {load} does not end"
            word, _, said = driver.heard().partition(" ")
            if word == "told":
                print(f"load {load}: {said}", flush=True)
                assert said in (DONE, UNDONE, UNKNOWN)
                self.committed |= {load} if said == DONE else set()
                return said
            if word == KILLED:
                print(f"load {load}: {KILLED}", flush=True)
                assert driver.struck, f"it has ended by itself: {(self.folder / 'driver.err').read_text()[-4000:]}"
                self._bury()
                return KILLED
            written = word == "written"
            for strike in pending[:]:
                if strike.while_ending is ending and (strike.due() or (written and not ending)):
                    pending.remove(strike)
                    strike.act()
            if written:
                ending = True
                driver.tell("go")
            time.sleep(0.02)

    def prepared(self) -> int:
        """How many branches."""
        ((count,),) = self.databases["one"].execute("select count(*) from pg_prepared_xacts").fetchall()
        return int(count)

    def commit(self, load: int, *strikes: Strike) -> None:
        """Write a load as often as it takes to be told that it has committed; the strikes fall on the first attempt."""
        while load not in self.committed:
            self.attempt(load, *strikes)
            strikes = ()

    def landed(self) -> dict[int, set[str]]:
        """By load, the databases that hold it. Each holds all of its rows once."""
        found: dict[int, set[str]] = {}
        query = f"select load, count(*), count(distinct id), min(id), max(id) from {TABLE} group by load"
        rows = self.partitions * ROWS
        for name, connection in self.databases.items():
            for load, *counts in connection.execute(query).fetchall():
                assert counts == [rows, rows, 0, rows - 1], f"load {load} in {name}"
                found.setdefault(load, set()).add(name)
        self._judge()
        return found

    def _judge(self) -> None:
        """What no part of txpool finds each load whole or nowhere, by the last row of each partition."""
        query = f"select id, load from {TABLE} where id % {ROWS} = {ROWS - 1}"
        rows = range(ROWS - 1, self.partitions * ROWS, ROWS)
        lists = {f"row {row} in {name}": list[int]() for name in self.databases for row in rows}
        for name, connection in self.databases.items():
            for row, load in connection.execute(query).fetchall():
                lists[f"row {row} in {name}"].append(load)
        told = {str(load): "committed" if load in self.committed else "nothing" for load in self.loads}
        require_atomic(told, lists)

    # -- strikes ------------------------------------------------------------------------------------------------

    def at(self, branches: int, act: Callable[[], object]) -> Strike:
        """Once so many branches are prepared."""
        return Strike(act, lambda: self.prepared() >= branches)

    def left(self, branches: int, act: Callable[[], object]) -> Strike:
        """Once so many of those that the driver ends are left."""
        return Strike(act, lambda: self.prepared() <= branches, while_ending=True)

    def kill_executor(self) -> None:
        self.cluster.kill_executor(self.chance)
        self.struck["executors"] += 1

    def kill_driver(self) -> None:
        self.driver.kill(with_java=self.chance.random() < 0.5)
        self.struck["drivers"] += 1

    def promote(self) -> None:
        """Before the driver may decide, recovery fences it, since the lease is gone."""
        before = self._fences()
        self.log.lose_primary()
        self.log.promote()
        self.struck["promotions"] += 1
        until(lambda: self._fences() > before, PATIENCE, "the driver is not fenced")

    def _fences(self) -> int:
        with psycopg.connect(self.log.dsn(LOG), autocommit=True) as log:
            ((count,),) = log.execute("select count(*) from txpool_incarnations where fenced > 0").fetchall()
        return int(count)

    def restart_daemon(self) -> None:
        self.kill_daemon()
        self.start_daemon()
        self.struck["daemons"] += 1

    def cut(self, load: int) -> Strike:
        """Cut off the host of a zombie of this load, which then sends its PREPARE."""
        zombie(load, "wanted", self.folder).touch()
        here = zombie(load, "here", self.folder)

        def act() -> None:
            self.cluster.host_at(here.read_text()).cut()
            zombie(load, "go", self.folder).touch()
            until(zombie(load, "sent", self.folder).exists)
            self.struck["hosts cut off"] += 1

        return Strike(act, here.exists)

    def heal(self) -> None:
        for host in self.network.hosts:
            host.heal()

    def zombie_wakes(self) -> None:
        """The load of a zombie has ended. Its host is whole again: its PREPARE comes late, and recovery ends that."""
        self.kill_daemon()
        before = self.prepared()
        self.heal()
        until(lambda: self.prepared() > before, PATIENCE, "no PREPARE has come late")
        self.start_daemon()
        until(lambda: self.prepared() <= before, PATIENCE, "what was prepared late stays")
