"""Servers that all processes of a run share: the first that needs one starts it, and it ends behind the last.

A keeper, a process of its own, starts the server and holds it. Each process of the run that uses it holds a lock, which
the kernel takes from it when it ends, however it ends. The keeper waits for that lock, and then ends the server. A test
that kills, restarts or configures a server has one of its own.
"""

from __future__ import annotations

import atexit
import fcntl
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from tests.support.repository import ROOT

if TYPE_CHECKING:
    import pytest


class Server(Protocol):
    """What can be kept. It can be pickled before it is started: others know by that where it is."""

    def start(self) -> None:
        """Start it, and wait until it answers."""

    def close(self) -> None:
        """End it with all its processes."""


S = TypeVar("S", bound=Server)

_PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "main")
_numbers = itertools.count()


def unique(name: str) -> str:
    """The name with an ending that no other test of the run has: letters, digits and hyphens."""
    return f"{name}-{_PROCESS}-{next(_numbers)}"


def node_of(places: tuple[str, str]) -> str:
    """The node of a test by its queues or topics: no other test's recovery ends what it has prepared."""
    return f"n-{places[1]}"


@contextmanager
def shared(factory: pytest.TempPathFactory, make: Callable[..., S], *arguments: str) -> Iterator[S]:
    """The run's server of this kind: `make(folder, *arguments)`, which was started."""
    base = factory.getbasetemp()
    folder = (base if _PROCESS == "main" else base.parent) / f"shared-{make.__name__.lower()}"
    folder.mkdir(exist_ok=True)
    with open(folder / "users", "w") as users, open(folder / "start", "w") as start:
        os.register_at_fork(after_in_child=users.close)
        fcntl.flock(users, fcntl.LOCK_SH)  # until it is closed
        fcntl.flock(start, fcntl.LOCK_EX)
        if not (folder / "server").exists():
            (folder / "order").write_bytes(pickle.dumps((make, arguments)))
            _start_keeper(folder)
        fcntl.flock(start, fcntl.LOCK_UN)
        server: S = pickle.loads((folder / "server").read_bytes())
        yield server


@contextmanager
def own(factory: pytest.TempPathFactory, make: Callable[..., S], *arguments: str) -> Iterator[S]:
    """A server of the caller's alone."""
    server = make(factory.mktemp(make.__name__.lower()), *arguments)
    try:
        server.start()
        yield server
    finally:
        server.close()


def _start_keeper(folder: Path) -> None:
    log = folder / "keeper.log"
    with log.open("wb") as errors:
        command = [sys.executable, "-m", "tests.support.shared", str(folder)]
        keeper = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, start_new_session=True)
    assert keeper.stdout is not None
    with keeper.stdout as said:
        assert said.readline() == b"started\n", log.read_text()[-4000:]

    def wait() -> None:  # so that the run ends behind the server
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(60)

    atexit.register(wait)


# -- in the keeper --------------------------------------------------------------------------------------------------


def _keep(folder: Path) -> None:
    make, arguments = pickle.loads((folder / "order").read_bytes())
    server: Server = make(Path(tempfile.mkdtemp(dir=folder)), *arguments)
    known = pickle.dumps(server)
    with open(folder / "users") as users, closing(server):
        server.start()
        (folder / "server").write_bytes(known)
        print("started", flush=True)
        fcntl.flock(users, fcntl.LOCK_EX)
        (folder / "server").unlink(missing_ok=True)  # whoever comes now waits for the lock, and starts another


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
