"""Python processes at the price of a fork: their parent has imported everything, opened nothing, and runs no thread.

A process that imports txpool, its recovery and a driver takes half a second of CPU for that. `start` gives a process
with pipes, as `subprocess.Popen` does, and `run` the result of one, as `subprocess.run`. Such a process takes
`-c SOURCE` or `-m MODULE`, dies of every signal, and ends as an interpreter ends. A test that is about the beginning or
the end of a process starts a real one.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT

_LENGTH = 8
#: What a child is given: its stdin, stdout, stderr, and the pipe that tells how it has ended.
_PIPES = 4


class Process:
    """A child of the preloaded parent: the part of `subprocess.Popen` that tests use, with text in its pipes."""

    def __init__(self, args: Sequence[str], pid: int, status: int, pipes: Sequence[int]) -> None:
        self.args = [sys.executable, *args]
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        stdin, stdout, stderr = pipes
        self.stdin = open(stdin, "w")
        self.stdout = open(stdout)
        self.stderr = open(stderr)

    def poll(self) -> int | None:
        """How it has ended, as `subprocess` says it; None while it runs."""
        return self._end(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._end(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Close its stdin, read both its pipes to their ends, and wait for its end."""
        said = ["", ""]

        def read(number: int, pipe: io.TextIOWrapper) -> None:
            said[number] = "" if pipe.closed else pipe.read()

        readers = [
            threading.Thread(target=read, args=each, daemon=True) for each in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        if not self.stdin.closed:
            try:
                with self.stdin:
                    self.stdin.write(text)
            except BrokenPipeError:
                pass  # it has ended without reading
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        self.stdout.close()
        self.stderr.close()
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            text = os.read(self._status, 32)
            assert text, "the preloaded parent has ended"
            self.returncode = int(text)
            os.close(self._status)
        return self.returncode


def start(*arguments: str, cwd: Path, env: Mapping[str, str]) -> Process:
    """A process that runs `python *arguments`, which are -c SOURCE or -m MODULE, and what follows."""
    ours, theirs = [], []
    for read, write in (os.pipe() for _ in range(_PIPES)):
        pair = (write, read) if not ours else (read, write)  # of stdin we write the one end
        ours.append(pair[0])
        theirs.append(pair[1])
    text = json.dumps({"arguments": arguments, "cwd": str(cwd), "env": dict(env)}).encode()
    with _lock:
        parent = _the_parent()
        socket.send_fds(parent, [len(text).to_bytes(_LENGTH)], theirs)
        parent.sendall(text)
        pid = int.from_bytes(_received(parent, _LENGTH))
    for each in theirs:
        os.close(each)
    return Process(arguments, pid, ours.pop(), ours)


def run(
    *arguments: str, cwd: Path, env: Mapping[str, str], stdin: str = "", timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Such a process from its start to its end."""
    process = start(*arguments, cwd=cwd, env=env)
    try:
        stdout, stderr = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.wait(), stdout, stderr)


_lock = threading.Lock()
_parent: tuple[int, socket.socket] | None = None


def _the_parent() -> socket.socket:
    """The connection to this process's own preloaded parent, which ends when it is closed."""
    global _parent
    if _parent is None or _parent[0] != os.getpid():
        here, there = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.preloaded", str(there.fileno())],
            cwd=ROOT,
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
        )
        there.close()
        _parent = os.getpid(), here

        def close() -> None:
            here.close()
            process.wait()

        atexit.register(close)
    return _parent[1]


def _received(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        assert more, "the other side has ended"
        found += more
    return found


# -- in the parent --------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork a child for each order until the connection ends; in the child, its order."""
    running: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the tests
    while True:
        ready, _, _ = select.select([connection, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(running)
        if connection not in ready:
            continue
        head, pipes, _, _ = socket.recv_fds(connection, _LENGTH, _PIPES)
        if not head:
            return None
        order: dict[str, Any] = json.loads(_received(connection, int.from_bytes(head)))
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            for each in (woken, wake, pipes.pop(), *running.values()):
                os.close(each)
            for number, each in enumerate(pipes):
                os.dup2(each, number)
                os.close(each)
            return order
        running[pid] = pipes.pop()
        for each in pipes:
            os.close(each)
        connection.sendall(pid.to_bytes(_LENGTH))


def _tell_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with open(running.pop(pid), "w") as pipe:
            pipe.write(str(os.waitstatus_to_exitcode(status)))


def _become(order: dict[str, Any]) -> None:
    """Run what was ordered in this process, as a new interpreter would."""
    import runpy
    from types import ModuleType

    from txpool import failpoints

    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failpoints._arm_from_environment(os.environ.get("TXPOOL_FAILPOINTS", ""))
    kind, what, *rest = order["arguments"]
    sys.argv = [kind, *rest]
    sys.path[:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        assert kind == "-c"
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(main))


def _preload() -> None:
    """What the children import; nothing of it opens anything."""
    import gc
    import importlib
    import pkgutil
    from contextlib import redirect_stdout, suppress

    import psycopg

    import recovery.cli
    import txpool.datasource
    from txpool.resources import mysql, postgresql, sqlite

    for package in (postgresql, sqlite, mysql):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            with suppress(ImportError):  # a driver's extra is missing
                importlib.import_module(module.name)
    with redirect_stdout(io.StringIO()):  # what a command line imports, it imports late
        recovery.cli.app(["--help"], standalone_mode=False)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # what all children share is not copied by a collection


if __name__ == "__main__":
    _preload()
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        _become(found)
