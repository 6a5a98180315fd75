"""A physical connection with what the pool knows of it, and what the pool needs of its driver."""

from __future__ import annotations

import logging
import math
import random
import weakref
from threading import Thread
from time import monotonic
from types import CodeType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from txpool.pool.state import PoolState

log = logging.getLogger("txpool.pool")

C = TypeVar("C")

#: A pool that opened its connections together must not lose them together.
JITTER = 0.025


class Connector(Protocol[C]):
    """What the pool needs of a driver. Every method may be called from any thread; a `timeout` is in seconds."""

    def connect(self, *, timeout: float) -> C:
        """Open a connection, clean and ready for use; the driver's own error when it cannot."""

    def is_clean(self, raw: C) -> bool:
        """Tell, without I/O, whether it is open, idle and outside any transaction."""

    def reset(self, raw: C, timeout: float) -> None:
        """Roll back and restore the session; raises when it cannot, or has no answer in time."""

    def ping(self, raw: C, timeout: float) -> None:
        """Ask the server for a sign of life: TimeoutError when none has come in time, another when it is dead."""

    def close(self, raw: C) -> None:
        """Close it, whatever state it is in, and without waiting for the server."""


class Pooled(Generic[C]):
    """One place below a pool's `max_size`, and the connection in it.

    It exists before its connection is open, so the cap counts what is being opened too. Who takes one sets
    `dirty` once session attributes were changed, so that it is reset when it is given back. One that is
    dropped instead (an interrupt struck between two steps, a program forgot it) comes back to its pool to be
    closed: a finaliser of its user has nothing to do, and must not call the pool.
    """

    __slots__ = (
        "__weakref__",
        "_connector",
        "dirty",
        "dropped",
        "expires",
        "holder",
        "is_open",
        "leak_reported",
        "pool_state",
        "raw",
        "returned_at",
        "stack",
        "taken_at",
        "use_seconds",
        "uses",
    )

    raw: C

    def __init__(self, connector: Connector[C], pool_state: weakref.ref[PoolState[C]], max_lifetime: float) -> None:
        self._connector = connector
        self.pool_state: weakref.ref[PoolState[C]] | None = pool_state
        self.is_open = False
        self.dirty = False
        #: The collector has called its finaliser: it is closed, even where another finaliser gives it back.
        self.dropped = False
        # Jitter is no secret. Zero is how a pool says "not again": at take and at give_back it has expired.
        self.expires = monotonic() + max_lifetime * (1 - JITTER * random.random())  # noqa: S311
        self.returned_at = -math.inf
        self.taken_at = 0.0
        # Holds one thread while taken. Its append and pop are atomic, so only one give_back can win.
        self.holder: list[Thread] = []
        self.stack: list[tuple[CodeType, int]] = []
        self.leak_reported = False
        # Only the holder writes these, so they need no lock.
        self.uses = 0
        self.use_seconds = 0.0

    def open(self, timeout: float) -> None:
        self.raw = self._connector.connect(timeout=timeout)
        self.is_open = True
        self.returned_at = monotonic()

    def close(self) -> None:
        """Close the connection; an error of that is of no interest any more, the connection is gone."""
        if self.is_open:
            self.is_open = False
            try:
                self._connector.close(self.raw)
            except Exception as error:
                log.debug("closing a connection failed: %s: %s", type(error).__name__, error)

    def __del__(self) -> None:
        if self.pool_state is None:  # the parent's, after a fork
            return
        exchange = self.pool_state()
        if exchange is None or exchange.closed:
            self.close()
        elif id(self) in exchange.members:
            # The collector calls the finalisers of a cycle in any order: its user's may have given it back already,
            # or does so next, and then it must not be handed out.
            self.dropped = self.dirty = True
            exchange.take_idle(self)
            # A finaliser may run inside any lock: the maintenance thread does the rest.
            exchange.dropped.put(self)

    def __repr__(self) -> str:
        state = "opening" if not self.is_open else "taken" if self.holder else "idle"
        return f"<{type(self).__name__} {state}, used {self.uses} times>"
