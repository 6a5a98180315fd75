"""kill_at(): a process that is killed at a named point of a commit or of recovery."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from txpool.failpoints import POINTS
from txpool.testing.sockets import connections_of, other_ends

_CHILD = "from txpool.testing.child import run; run()"
_PAUSE = 0.01  # seconds between two looks


def kill_at(
    point: str, target: Callable[..., object] | str | Path, *arguments: Any, nth: int = 1, timeout: float = 120.0
) -> str:
    """Run a function or a script in a new process, which is killed (SIGKILL) when it reaches the point the nth time.

    Returns what it has printed, once the servers on this machine have ended its sessions: nothing of it is on its way
    any more. A function is one at the top of a module, and its arguments can be pickled; those of a script are texts.
    The process has this one's environment and working directory, and nothing else of it: it configures itself.
    Errors: ValueError if there is no such point, or the function cannot be found by its name; AssertionError if the
    process ends without reaching the point, or does neither within `timeout` seconds.
    """
    if point not in POINTS:
        near = get_close_matches(point, POINTS, n=3)
        raise ValueError(f"no point is called {point!r}: {' or '.join(near) or 'see txpool.failpoints.POINTS'}")
    with TemporaryFile() as given, TemporaryFile() as printed:
        if callable(target):
            command = [sys.executable, "-c", _CHILD]
            _write_call(given, target, arguments)
        else:
            command = [sys.executable, str(target), *map(str, arguments)]
        stopped, connections = False, set[tuple[int, int]]()
        process = subprocess.Popen(
            command, env=_environment(point, nth), stdin=given, stdout=printed, stderr=subprocess.STDOUT
        )
        try:
            stopped = _stops(process.pid, time.monotonic() + timeout)
            if stopped:
                connections = connections_of(process.pid)
        finally:
            process.kill()
            code = process.wait()
        printed.seek(0)
        said = printed.read().decode(errors="replace")
    if not stopped:
        ended = f"had done neither after {timeout:g} s" if code < 0 else f"ended with code {code}"
        raise AssertionError(f"the process was to be killed at {point}, and {ended}. It printed:\n{said}")
    _await_servers(connections, timeout)
    return said


def _environment(point: str, nth: int) -> dict[str, str]:
    """It is stopped there, and then killed from here: its sockets can be seen before."""
    path = os.pathsep.join(filter(None, sys.path))
    return os.environ | {"TXPOOL_FAILPOINTS": f"{point}=stop@{nth}", "PYTHONPATH": path}


def _write_call(given: IO[bytes], function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """The function by its names, and then the arguments, which may be of its module's classes."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    if not name.isidentifier():
        raise ValueError(f"{function!r} is not at the top of a module: a new process could not find it by its name")
    pickle.dump((module, getattr(sys.modules.get(module), "__file__", None), name), given)
    pickle.dump(arguments, given)
    given.seek(0)


def _stops(pid: int, until: float) -> bool:
    """Wait until the process stops or ends, and leave it so; whether it has stopped."""
    while time.monotonic() < until:
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is not None:
            return found.si_code == os.CLD_STOPPED
        time.sleep(_PAUSE)
    return False


def _await_servers(connections: set[tuple[int, int]], timeout: float) -> None:
    """Wait until nobody on this machine holds the other end of a killed process's connection."""
    until = time.monotonic() + timeout
    while held := other_ends(connections):
        if time.monotonic() > until:
            ports = ", ".join(str(port) for port, _ in sorted(held))
            raise AssertionError(f"the servers at port {ports} still work for the killed process after {timeout:g} s")
        time.sleep(_PAUSE)
