"""Removes two delays from Spark's Python workers, which run one task after another.

Every Python function in Spark has these delays, and they are as long for a partition of one row as for any other.
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
    """Remove the delays. To be called at the beginning of a task, before it reads its first row."""
    _freeze_modules()
    if sys.platform == "linux":
        _acknowledge()


@cache
def _freeze_modules() -> None:
    """Exclude the objects of imported modules from garbage collection, once for the process.

    Spark collects garbage in the worker after every task, and the next task waits for that. To traverse pandas and the
    other modules each time takes tens of milliseconds.
    """
    gc.collect()
    gc.freeze()


def _acknowledge() -> None:
    """Acknowledge at once, on the TCP connection to Spark, that the task has been received.

    Spark sends the task and then its rows. TCP holds the rows back until the task is acknowledged (Nagle's algorithm),
    and the receiver delays that acknowledgement by 40 ms. Spark does not say which descriptor the connection has, so
    the option is set on all of them; it does no harm to the others.
    """
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # the descriptor has been closed, or is not TCP
            if stat.S_ISSOCK(os.stat(f"{_DESCRIPTORS}/{name}").st_mode):
                with socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
