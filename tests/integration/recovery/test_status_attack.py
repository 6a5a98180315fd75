"""The daemon while a local user attacks its status page, and while its process has no file descriptor left."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.recovery_site import BOTH, SERVED, WRITER, Site, address_in, daemon, extend, get, until

#: What an attacker sends: nothing, a beginning, all but the end, a whole request whose answer is never read.
SENT = (
    b"",
    b"G",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50,
)
MOST = 600


class Attack:
    """Holds `MOST` connections to the page, and opens them anew for as long as it lasts."""

    def __init__(self, url: str) -> None:
        self._at = (urlsplit(url).hostname, urlsplit(url).port)
        self._held: deque[socket.socket] = deque()
        self._kinds = cycle(SENT)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def open(self) -> None:
        """One more, which waits for nothing; what it sends is sent once there has been time to connect."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.setblocking(False)
        connection.connect_ex(self._at)
        self._held.append(connection)
        for earlier, data in ((50, next(self._kinds)), (MOST // 4, b"x")):
            if len(self._held) > earlier:
                with suppress(OSError):
                    self._held[-earlier].send(data)

    def _run(self) -> None:
        while not self._over.is_set():
            self.open()
            if len(self._held) > MOST:
                self._held.popleft().close()

    def __enter__(self) -> Attack:
        for _ in range(MOST):
            self.open()
            time.sleep(0.002)  # so that not most of them are turned away by the kernel
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.close()

    def close(self) -> None:
        for connection in self._held:
            connection.close()


def get_at_last(url: str) -> str:
    """Ask again and again: among so many, the kernel or the page turns a connection away.

    The kernel tries each itself, in ever longer steps.
    """
    for _ in range(30):
        with suppress(OSError):
            return get(url, timeout=3)
    return get(url)


def bounded(process: Any, most: int) -> None:
    """Let the daemon have that many file descriptors, and no more."""
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, hard))


def descriptors(process: Any) -> set[int]:
    return {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}


@contextmanager
def exhausted(process: Any) -> Iterator[None]:
    """Let the daemon open nothing more."""
    soft, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    taken, before = descriptors(process), set()
    while taken != before:  # a scan or a request is still about to end
        time.sleep(0.3)
        taken, before = descriptors(process), taken
    bounded(process, next(number for number in range(soft) if number not in taken))
    try:
        yield
    finally:
        if process.poll() is None:
            bounded(process, soft)


def processor(process: Any) -> float:
    """Seconds of a processor that it has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ended(process: Any) -> str:
    """What it says at its end, which is a clean one."""
    process.terminate()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    return str(said)


@pytest.fixture
def site(site: Site) -> Site:
    extend(site, "status.address = 127.0.0.1:0")
    return site


@pytest.mark.costly
def test_recovery_goes_on_while_its_page_is_attacked(site: Site) -> None:
    site.write("recovery", site.conf.read_text().replace("recovery.period = 3600", "recovery.period = 0.2").strip())
    with daemon(site) as (process, url):
        bounded(process, 256)
        with Attack(url):
            site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
            while site.counts() != {"one": 1, "two": 1, "ledger": 0} or site.databases.prepared():
                assert process.poll() is None
                time.sleep(0.1)
            for path in ("healthz", "", "metrics", "api/in-doubt") * 3:
                assert get_at_last(f"{url}{path}")
            assert len(descriptors(process)) < 150
            process.send_signal(signal.SIGHUP)
            said = until(process, SERVED)
            with Attack(address_in(said)):
                assert get_at_last(f"{address_in(said)}healthz").startswith("recovery works")
                said += ended(process)
    for wrong in (" ERROR ", "the scan failed", "unable to open", "Too many open files", "status page has failed"):
        assert wrong not in said


@pytest.mark.costly
def test_it_ends_cleanly_while_a_thousand_connections_are_open_and_no_descriptor_is_free(site: Site) -> None:
    with daemon(site) as (process, url), closing(Attack(url)) as attack:
        with exhausted(process):
            for _ in range(1000):
                attack.open()
            before = processor(process)
            time.sleep(2)
            assert processor(process) - before < 1, "it spins"
            process.send_signal(signal.SIGHUP)
            assert "goes on with the configuration that it had" in until(process, "SIGHUP: ")
        # Those that have waited are accepted now. Who is held up before it sends is dropped in favour of a later one.
        assert get_at_last(f"{url}healthz").startswith("recovery works")
        with exhausted(process):
            ended(process)
