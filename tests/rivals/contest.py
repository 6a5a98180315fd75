"""One harness for txpool and for another: asynchronous clients are killed, and each one's own recovery ends the rest.

A planned kill comes while recovery runs: it has read the first database, and reaches the second only once a client has
prepared in both and died. That takes no luck: recovery reaches the second database through a gate. Other kills come at
random times, and recovery after them.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from recovery import RecoveryManager
from tests.support.repository import ROOT
from tests.support.waiting import until
from txpool.config.settings import RecoverySettings
from txpool.setup.stores import initialise

#: The name of a variable.
PASSWORD = "TXPOOL_RIVALS_PASSWORD"
_TIMEOUT = 120.0
#: Of what is no crash: the rival takes for dead what is prepared for longer.
_GRACE = timedelta(milliseconds=10)


@dataclass
class Report:
    """What became of the numbers that clients have transferred from one database to the other."""

    kills: int
    torn: list[int] = field(default_factory=list)
    duplicates: list[int] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = (f"{len(found)} {name}" for name, found in vars(self).items() if isinstance(found, list))
        return f"{self.kills} kills: {', '.join(counts)}"


class Gate:
    """A port that leads to a server, and opens once `meanwhile` was called, at the first connection."""

    def __init__(self, port: int, meanwhile: Callable[[], object]) -> None:
        self._target = port
        self._meanwhile = meanwhile
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._lock = threading.Lock()
        self.passed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self._server.accept()[:1], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, ExitStack() as stack:
            with self._lock:
                if not self.passed:
                    self._meanwhile()
                    self.passed = True
            server = stack.enter_context(socket.create_connection(("127.0.0.1", self._target)))
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class Contest:
    """Two databases, and the clients and the recovery of one contender over them."""

    def __init__(self, contender: str, databases: Any, folder: Path) -> None:
        self._contender = contender
        self._databases = databases
        self._folder = folder
        self._kills = 0
        self._next = 0
        os.environ[PASSWORD] = databases.server.password
        self._urls = [databases.url(name) for name in ("one", "two")]
        for name in ("one", "two"):
            databases.execute(name, "create table t (id serial primary key, number int not null)")
        node = f"node.name = client\nlog.url = sqlite:///{folder}/txlog\n"
        self._describe(folder, self._urls)
        (folder / "txpool.properties").write_text(node)
        #: Recovery has files of its own.
        self._recovery = folder / "recovery"
        self._recovery.mkdir()
        self._describe(self._recovery, self._urls)
        self._conf = self._recovery / "recovery.properties"
        self._conf.write_text(f"{node}datasources = one.properties, two.properties\nrecovery.backoff = 0\n")
        if contender == "txpool":
            initialise(RecoverySettings.load(self._conf))

    def planned(self) -> None:
        """A client dies prepared while recovery is between the two databases; then recovery runs again."""
        gate = Gate(urlsplit(self._urls[1]).port or 0, lambda: self._killed_client("prepared"))
        try:
            self._recover([self._urls[0], self._urls[1].replace(f":{urlsplit(self._urls[1]).port}/", f":{gate.port}/")])
        finally:
            gate.close()
        assert gate.passed
        self._recover(self._urls)

    def at_random(self, chance: random.Random) -> None:
        """A client is killed somewhere; then recovery runs."""
        self._killed_client("", chance)
        # The server may still work on what it has sent, and prepare that behind the recovery.
        sessions = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        until(lambda: not self._databases.rows("one", sessions))
        self._recover(self._urls)

    def report(self) -> Report:
        report = Report(self._kills)
        held = [
            Counter(row[0] for row in self._databases.rows(name, "select number from t")) for name in ("one", "two")
        ]
        report.torn = sorted(held[0].keys() ^ held[1].keys())
        report.duplicates = sorted({number for each in held for number, times in each.items() if times > 1})
        report.stuck = [gid for (gid,) in self._databases.rows("one", "select gid from pg_prepared_xacts")]
        return report

    def _killed_client(self, point: str, chance: random.Random | None = None) -> None:
        arguments = ["tests.rivals.client", self._contender, point, str(self._next), *self._urls]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        client = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=self._folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        overdue = threading.Timer(_TIMEOUT, client.kill)
        overdue.start()
        try:
            if chance is not None and client.stdout is not None:
                for _ in range(chance.randint(1, 20)):
                    assert client.stdout.readline(), "it had ended by itself"
                with suppress(subprocess.TimeoutExpired):
                    client.wait(chance.uniform(0, 0.01))
                client.kill()
            assert client.wait(_TIMEOUT) < 0, "it had ended by itself"
        finally:
            overdue.cancel()
            client.kill()
            client.communicate()
        self._kills += 1
        self._next += 1_000

    def _recover(self, urls: list[str]) -> None:
        if self._contender == "txpool":
            self._describe(self._recovery, urls)
            manager = RecoveryManager(self._conf)
            try:
                manager.scan()
            finally:
                manager.close()
            return
        from sqlalchemy import NullPool, create_engine
        from sqlalchemy_xa_recovery import recover_xa_transactions

        password = {"password": os.environ[PASSWORD]}
        engines = [
            create_engine(url.replace("postgresql:", "postgresql+psycopg:"), connect_args=password, poolclass=NullPool)
            for url in urls
        ]
        recover_xa_transactions(engines, _GRACE)

    def _describe(self, folder: Path, urls: list[str]) -> None:
        """Write the files of datasources, as the clients of txpool or its recovery reach them."""
        for name, url in zip(("one", "two"), urls, strict=True):
            text = f"driver = psycopg\nmode = xa\nurl = {url}\npassword = ${{env:{PASSWORD}}}\n"
            (folder / f"{name}.properties").write_text(text)
