"""Locks that no interrupt leaves held.

An interrupt comes before `with lock` has the lock, or within the block: so it is on other Pythons than 3.14. That may
raise it between the two, behind the call of `__enter__`, and never calls `__exit__` (cpython#148874). But it does not
look for signals behind a call of a Python function, and in this one what takes the lock is no call.
"""

from __future__ import annotations

import _thread
import sys
import threading

if sys.version_info[:2] != (3, 14):
    Lock = threading.Lock
    RLock = _thread.RLock
else:
    _ONCE = (True,)

    class Lock:
        """A lock, as `threading.Lock` makes it."""

        __slots__ = ("__exit__", "acquire", "locked", "release")

        def __init__(self) -> None:
            lock = _thread.allocate_lock()
            # As a function of Python's it could be interrupted before it has begun.
            self.__exit__ = lock.__exit__
            self.acquire, self.release, self.locked = lock.acquire, lock.release, lock.locked

        def __enter__(self) -> bool:
            (held,) = map(self.acquire, _ONCE)
            return held

    class RLock(_thread.RLock):
        """A reentrant lock."""

        __slots__ = ()

        def __enter__(self) -> bool:
            (held,) = map(self.acquire, _ONCE)
            return held
