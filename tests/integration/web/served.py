"""A real server in a process of its own, over the databases of a recovery site; and what its applications share."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import txpool
from tests.support.recovery_site import Site
from tests.support.repository import ROOT
from tests.support.waiting import until
from txpool import failpoints

_TIMEOUT = 60.0

# -- within an application ------------------------------------------------------------------------------------------


def configure() -> None:
    """As the site's files say, which are in the working directory."""
    txpool.configure("txpool.properties")


def insert(*names: str, number: int = 1) -> None:
    for name in names:
        with txpool.connect(f"{name}.properties") as connection:
            connection.cursor().execute(f"insert into t values ({number})")


async def ainsert(*names: str, number: int = 1) -> None:
    for name in names:
        async with await txpool.aconnect(f"{name}.properties") as connection:
            await connection.execute("insert into t values (%s)", (number,))


def wait() -> None:
    """Until the test lets it go on."""
    Path("waiting").touch()
    until(Path("go").exists)


async def await_go() -> None:
    """As `wait`, in an event loop."""
    Path("waiting").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)


def arm(query: str) -> None:
    """`arm=coordinator.prepared:kill`, or `:wait`, any number of times."""
    for each in parse_qs(query).get("arm", []):
        point, _, action = each.partition(":")
        failpoints.arm(point, wait if action == "wait" else action)


def session() -> int:
    """The process of the database's that serves us."""
    with txpool.connect("one.properties") as connection:
        cursor = connection.cursor()
        return int(cursor.execute("select pg_backend_pid()").fetchone()[0])


# -- in the test ----------------------------------------------------------------------------------------------------


class Served:
    """A server that listens on the loopback."""

    def __init__(self, site: Site, command: list[str]) -> None:
        self.site = site
        self._log = site.folder / "server.log"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=site.folder, env=environment, stdout=log, stderr=log
            )
        until(lambda: self.process.poll() is not None or self._found())
        found = self._found()
        assert found is not None, self.log
        self.port = int(found[1])

    def _found(self) -> re.Match[str] | None:
        return re.search(r"(?:Listening at:|[Rr]unning on) http://127\.0\.0\.1:(\d+)", self.log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def counts(self) -> tuple[int, int]:
        """How many rows databases one and two hold."""
        counts = self.site.counts()
        return counts["one"], counts["two"]

    def ask(self, path: str, method: str = "POST", body: bytes | None = None) -> tuple[int, str]:
        """The status and the body of an answer."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT)) as connection:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read().decode()

    @contextlib.contextmanager
    def asking(self, path: str, body: bytes = b"", length: int | None = None) -> Iterator[socket.socket]:
        """A client that has asked, and goes away at the end of the block."""
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body) if length is None else length}"
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            yield client
            # A reset, and no polite end.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def waits(self) -> None:
        """Until a request does."""
        until((self.site.folder / "waiting").exists)

    def go(self) -> None:
        (self.site.folder / "go").touch()

    def afresh(self) -> None:
        """Empty tables, and nobody is let go on."""
        for name in ("one", "two"):
            self.site.databases.execute(name, "delete from t")
        for name in ("waiting", "go"):
            (self.site.folder / name).unlink(missing_ok=True)

    def stop(self) -> None:
        self.go()
        self.process.terminate()
        try:
            self.process.wait(_TIMEOUT)
        finally:
            self.process.kill()
            self.process.wait()


def nothing_has_come(client: socket.socket) -> bool:
    return select.select([client], [], [], 0)[0] == []
