"""What finalisers may do with a pool.

A finaliser may run anywhere, also in a thread that holds the lock. So the finaliser of a `Pooled` takes no lock, and
passes it to maintenance by `maintenance_queue`. Finalisers of users may give back and discard: if one runs in a
thread that holds the lock, that step is deferred until the thread has released it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from txpool.errors import InterfaceError
from txpool.locks import RLock


class DefersSteps:
    """Defers the steps of finalisers that run in a thread that holds the lock."""

    _name: str

    def __init__(self) -> None:
        #: Never acquired twice by a thread. It is reentrant because an RLock knows its owner.
        self.lock = RLock()
        #: The steps of finalisers that ran in a thread that held the lock.
        self._deferred: deque[Callable[[], None]] = deque()

    def deferred_in_finaliser(self, step: Callable[..., None], *args: Any) -> bool:
        """Defer the step, and return True, in a finaliser whose thread holds the lock; else False: do it now."""
        if not self._owns_lock():
            return False
        self._deferred.append(partial(step, *args))
        return True

    def run_deferred(self) -> None:
        """Run the deferred steps; called after each release of the lock."""
        while self._deferred:
            try:
                step = self._deferred.popleft()
            except IndexError:  # another thread was faster
                return
            step()

    def refuse_finaliser(self) -> None:
        """InterfaceError in a finaliser whose thread holds the lock: it would wait for itself."""
        if self._owns_lock():
            raise InterfaceError(
                f"pool {self._name!r}: a finaliser may give a connection back, but it cannot take one while its thread "
                "is busy in the pool"
            )

    def _owns_lock(self) -> bool:
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]
