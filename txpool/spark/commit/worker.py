"""A Python worker of Spark's, which serves one task after another: what each of them would wait for, taken away.

Both are Spark's own costs, of any Python function, and both are as large for a partition of one row as for any other.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
from contextlib import suppress
from functools import cache

_DESCRIPTORS = "/proc/self/fd"


def prepare_worker() -> None:
    """To be called where a task begins, before it asks for its first row."""
    _freeze_modules()
    if sys.platform == "linux":
        _acknowledge()


@cache
def _freeze_modules() -> None:
    """Once for all, set apart what the worker keeps: the objects that its modules are made of.

    Spark collects garbage in the worker after every task, and the next task waits for that. To look through pandas and
    all the others again takes tens of milliseconds.
    """
    gc.collect()
    gc.freeze()


def _acknowledge() -> None:
    """Tell Spark's side of the connection at once that the task has come.

    Spark sends the task, and then its rows; TCP holds these back until the task is acknowledged (Nagle), which the
    receiver puts off for 40 ms, in case it had something to say with it. Which descriptor it is, Spark does not tell:
    to any other connection this does nothing that it would notice.
    """
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # it is closed by now, or no TCP
            if stat.S_ISSOCK(os.stat(f"{_DESCRIPTORS}/{name}").st_mode):
                with socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
