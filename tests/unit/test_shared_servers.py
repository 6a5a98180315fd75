"""The server that all processes of a run share ends behind the last of them, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.children import WITH_ITS_PARENT
from tests.support.repository import ROOT
from tests.support.waiting import until

#: A process of the run: says the server's pid, and ends once its stdin does. What it has forked lives on.
_USER = """
import os, sys, time
from pathlib import Path
from tests.support.shared import shared
from tests.unit.test_shared_servers import Sleeper

class Factory:
    def getbasetemp(self):
        return Path(sys.argv[1])

with shared(Factory(), Sleeper, sys.argv[2]) as server:
    forked = os.fork()
    if forked == 0:
        os.closerange(0, 3)
        time.sleep(600)
        os._exit(0)
    print(server.pid(), forked, flush=True)
    sys.stdin.read()
"""


class Sleeper:
    """Something that runs, or cannot be started."""

    def __init__(self, folder: Path, program: str) -> None:
        self._file, self._program = folder / "pid", program
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([*WITH_ITS_PARENT, self._program, "600"])
        self._file.write_text(str(self._process.pid))
        assert self._program == "sleep", "it cannot be started"

    def close(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)

    def pid(self) -> int:
        return int(self._file.read_text())


@contextmanager
def users(folder: Path, count: int, program: str = "sleep") -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of a run, which begin together."""
    environment = {each: value for each, value in os.environ.items() if each != "PYTEST_XDIST_WORKER"}
    command = [sys.executable, "-c", _USER, str(folder), program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) for _ in range(count)]  # type: ignore[call-overload]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate(timeout=600)


def lives(pid: int) -> bool:
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_it_is_one_and_ends_behind_the_last(tmp_path: Path) -> None:
    with users(tmp_path, 3) as started:
        said = [[*map(int, each.stdout.readline().split())] for each in started]  # type: ignore[union-attr]
        forked = [child for _, child in said]
        try:
            assert len({pid for pid, _ in said}) == 1
            server = said[0][0]
            for each in started[:2]:  # one of which may have started it
                each.kill()
                each.wait(60)
            assert lives(server)
            _, errors = started[2].communicate(timeout=600)
            assert (started[2].returncode, errors) == (0, "")
            until(lambda: not lives(server))
            assert all(map(lives, forked))
        finally:
            for child in forked:
                os.kill(child, signal.SIGKILL)
    with users(tmp_path, 1) as (again,):
        new, child = map(int, again.stdout.readline().split())  # type: ignore[union-attr]
        os.kill(child, signal.SIGKILL)
        assert new != server
        assert lives(new)
    until(lambda: not lives(new))


def test_what_cannot_be_started_is_said_and_does_not_stay(tmp_path: Path) -> None:
    with users(tmp_path, 1, "tail") as (user,):
        _, errors = user.communicate(timeout=600)
    assert user.returncode == 1
    assert "it cannot be started" in errors
    (file,) = tmp_path.rglob("pid")
    assert not lives(int(file.read_text()))
