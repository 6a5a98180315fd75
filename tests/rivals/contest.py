"""One harness for all contenders: their clients meet faults, each one's recovery follows, the databases are read."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.rivals.contenders import BESIDE_CLIENTS, OVER_SPARK, PASSWORD, RECOVERIES, nothing
from tests.rivals.executors import descendants, kill_drivers, kill_executors, runs, spark_environment
from tests.rivals.gate import Fault, Gate, Trigger
from tests.support import preloaded
from tests.support.repository import ROOT
from tests.support.waiting import until
from txpool.config.settings import RecoverySettings
from txpool.setup.stores import initialise

NAMES = ("one", "two")
_TIMEOUT = 600.0


@dataclass
class Report:
    """What became of the numbers that clients have transferred; each list has such numbers."""

    faults: int
    kills: int
    torn: list[int] = field(default_factory=list)
    duplicates: list[int] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)
    #: A client was told that they are done, and neither database has them.
    lost: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        counts = (f"{len(found)} {name}" for name, found in vars(self).items() if isinstance(found, list))
        return f"{self.faults} faults, {self.kills} kills: {', '.join(counts)}"


class Client:
    """A process that transfers the numbers that it is told to."""

    def __init__(self, contender: str, urls: list[str], folder: Path) -> None:
        command = ["-m", "tests.rivals.client", contender, *urls]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        if contender in OVER_SPARK:
            environment |= spark_environment(folder)
        self._process = preloaded.start(*command, cwd=folder, env=environment)
        self._processes = [self._process.pid]
        #: The numbers that it was told to transfer and has said nothing of, and those of which it has said "done".
        self._ordered: deque[int] = deque()
        self.done: set[int] = set()
        self._overdue = threading.Timer(_TIMEOUT, self.kill)
        self._overdue.daemon = True
        self._overdue.start()
        assert self.heard() == "ready", "it did not start"

    def order(self, number: int) -> None:
        self._ordered.append(number)
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{number}\n")
            self._process.stdin.flush()

    def heard(self) -> str:
        """What it says of the next transfer; empty if it is dead."""
        for line in iter(self._process.stdout.readline, ""):
            if said := self._said(line):
                return said
        return ""

    def _said(self, line: str) -> str:
        said = line.strip()
        if said in ("done", "failed"):
            number = self._ordered.popleft()
            self.done |= {number} if said == "done" else set()
        return said if said in ("ready", "done", "failed") else ""

    def kill(self) -> None:
        """Kill it; if it is a driver of Spark, its Java, too. Its executors end by themselves, once they notice."""
        self._processes = descendants(self._process.pid)
        self._process.kill()
        kill_drivers(self._processes)

    def kill_executors(self) -> None:
        kill_executors(descendants(self._process.pid))

    def end(self) -> None:
        """Let it end by itself, if it lives, and hear what it has said until then."""
        self._overdue.cancel()
        with suppress(BrokenPipeError):
            for line in self._process.communicate(timeout=_TIMEOUT)[0].splitlines():
                self._said(line)
        until(lambda: not any(map(runs, self._processes)), _TIMEOUT, "its processes have not ended")


class Contest:
    """Two databases, and the clients and the recovery of one contender over them."""

    def __init__(self, contender: str, databases: Any, folder: Path) -> None:
        self._contender = contender
        self._databases = databases
        self._folder = folder
        self._faults = self._kills = self._last = 0
        os.environ[PASSWORD] = databases.server.password
        self._urls = [databases.url(name) for name in NAMES]
        self._trigger = Trigger()
        self._living: Client | None = None
        self._clients: list[Client] = []
        self._gates = [Gate(urlsplit(url).port or 0, self._trigger) for url in self._urls]
        self._through = [self._by(url, gate) for url, gate in zip(self._urls, self._gates, strict=True)]
        for name in NAMES:
            databases.execute(name, "create table t (id serial primary key, number int not null)")
        node = f"node.name = client\nlog.url = sqlite:///{folder}/txlog\n"
        self._describe(folder, self._through)
        (folder / "txpool.properties").write_text(node)
        #: Recovery has files of its own.
        self._recovery = folder / "recovery"
        self._recovery.mkdir()
        self._describe(self._recovery, self._urls)
        self._conf = self._recovery / "recovery.properties"
        patient = "recovery.backoff = 0\nrecovery.step-timeout = 300\n"  # a client lives while it reads
        self._conf.write_text(f"{node}datasources = one.properties, two.properties\n{patient}")
        if "txpool" in contender:
            initialise(RecoverySettings.load(self._conf))

    def close(self) -> None:
        if self._living is not None:
            self._living.kill()
        for gate in self._gates:
            gate.close()

    def at_statement(self, nth: int, fault: Fault) -> bool:
        """A fault at the n-th statement of a transfer; whether there was such a statement.

        Recovery runs once the client is dead; one that the fault does not kill goes on.
        """
        client = self._living or self._client()
        self._living = None
        client.order(self._number())
        assert client.heard() == "done"
        self._trigger.arm(nth, fault, self._act(client, fault))
        client.order(self._number())
        client.heard()
        fired = self._trigger.fired
        self._trigger.disarm()
        self._faults += fired
        if fired and fault in (Fault.EXECUTOR_KILLED, Fault.REPLY_LOST, Fault.STALLED):
            client.order(self._number())
            client.heard()
            self._living = client
            return True
        client.end()
        self._after()
        return fired

    def at_random(self, chance: random.Random) -> None:
        """A client is killed somewhere; then recovery runs."""
        self._end_living()
        client = self._client()
        ordered = chance.randint(2, 20)
        for _ in range(ordered):
            client.order(self._number())
        client.heard()
        time.sleep(chance.uniform(0, 0.05))  # any moment is right
        client.kill()
        client.end()
        self._kills += 1
        self._after()

    def between_listings(self) -> None:
        """Recovery has read the first database; a client prepares in both and is killed, and then it reads the second.

        That takes no luck: recovery reaches the second database through a gate. Then it runs once more.
        """
        opened: list[bool] = []

        def meanwhile() -> None:
            client = self._client()
            client.order(self._number())
            assert client.heard() == "done"
            # Of two INSERTs and two PREPAREs; what is behind them is not executed.
            self._trigger.arm(5, Fault.KILLED_BEFORE, self._act(client, Fault.KILLED_BEFORE))
            client.order(self._number())
            assert client.heard() == ""
            self._trigger.disarm()
            client.end()
            opened.append(True)

        gate = Gate(urlsplit(self._urls[1]).port or 0, Trigger(), meanwhile)
        try:
            self._recover([self._urls[0], self._by(self._urls[1], gate)])
        finally:
            gate.close()
        assert opened
        self._after()

    def report(self) -> Report:
        """What the databases say; afterwards nothing is prepared any more."""
        self._end_living()
        before = self._read()
        for name in NAMES:
            with psycopg.connect(self._databases.dsn(name), autocommit=True) as connection:
                query = "select gid from pg_prepared_xacts where database = current_database()"
                for (gid,) in connection.execute(query).fetchall():
                    connection.execute(psycopg.sql.SQL("commit prepared {}").format(gid))
        after = self._read()
        stuck = {row for was, found in zip(before, after, strict=True) for row in found - was}
        torn = (before[0].keys() ^ before[1].keys()) - stuck
        twice = {row for found in before for row, times in found.items() if times > 1}
        lost = set[int]().union(*(each.done for each in self._clients)).difference(*after)
        return Report(self._faults, self._kills, sorted(torn), sorted(twice), sorted(stuck), sorted(lost))

    def _end_living(self) -> None:
        if self._living is not None:
            self._living.end()
            self._living = None
            self._after()

    def _read(self) -> list[Counter[int]]:
        return [Counter(row for (row,) in self._databases.rows(name, "select number from t")) for name in NAMES]

    def _number(self) -> int:
        self._last += 1
        return self._last

    def _client(self) -> Client:
        self._clients.append(Client(self._contender, self._through, self._folder))
        return self._clients[-1]

    def _act(self, client: Client, fault: Fault) -> Any:
        if fault in (Fault.KILLED_BEFORE, Fault.KILLED_BEHIND):
            self._kills += 1
            return client.kill
        if fault is Fault.EXECUTOR_KILLED:
            self._kills += 1
            return client.kill_executors
        if fault is Fault.STALLED and self._contender in BESIDE_CLIENTS:
            return lambda: (time.sleep(0.05), self._recover(self._urls))  # longer than any grace
        return bool

    def _after(self) -> None:
        """The client is dead, and recovery runs."""
        # The server may still work on what it has sent, and prepare that behind the recovery.
        sessions = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        until(lambda: not self._databases.rows("one", sessions))
        self._recover(self._urls)

    def _recover(self, urls: list[str]) -> None:
        self._describe(self._recovery, urls)
        RECOVERIES.get(self._contender, nothing)(urls, self._conf)

    @staticmethod
    def _by(url: str, gate: Gate) -> str:
        return url.replace(f":{urlsplit(url).port}/", f":{gate.port}/")

    @staticmethod
    def _describe(folder: Path, urls: list[str]) -> None:
        """Write the files of datasources, as the clients of txpool or its recovery reach them."""
        for name, url in zip(NAMES, urls, strict=True):
            text = f"driver = psycopg\nmode = xa\nurl = {url}\npassword = ${{env:{PASSWORD}}}\n"
            (folder / f"{name}.properties").write_text(text)
