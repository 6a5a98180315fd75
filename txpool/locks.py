"""Locks that no interrupt leaves held.

An interrupt comes before `with lock` has the lock, or within the block: so it is on other Pythons than 3.14. That may
raise it between the two, behind the call of `__enter__`, and never calls `__exit__` (cpython#148874). But it does not
look for signals behind a call of a Python function, and in this one what takes the lock is no call.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable

_ONCE = (True,)
_TRY = (False,)

if sys.version_info[:2] != (3, 14):
    Lock = threading.Lock
    RLock = _thread.RLock
else:

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


class DeadlineLock:
    """A reentrant lock for which `with` waits as long as a function says.

    That returns the seconds until it is asked again, -1 for ever, and raises once the wait is over. It is told whether
    this has waited before.
    """

    __slots__ = ("__exit__", "_left", "acquire", "release")

    def __init__(self, left: Callable[[bool], float]) -> None:
        lock = RLock()
        self.__exit__ = lock.__exit__
        self.acquire, self.release, self._left = lock.acquire, lock.release, left

    def __enter__(self) -> bool:
        held: bool
        (held,) = map(self.acquire, _TRY)
        if held:
            return held
        waited = False
        while True:  # no jump back comes behind the call by which it has the lock
            (held,) = map(self.acquire, _ONCE, (self._left(waited),))
            if held:
                return held
            waited = True
