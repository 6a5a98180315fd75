"""Work in a forked child."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> None:
    """Run it in a forked child; what it raises there fails the test."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what this is about
        pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        error = pipe.read().decode()
    os.waitpid(pid, 0)
    assert not error, error


def is_killed(work: Callable[[], object]) -> bool:
    """Run it in a forked child; whether that was killed in it. What it raises is left aside."""
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
