"""`Pooled`, a physical connection as the pool keeps it, and `Connector`, the protocol of drivers."""

from __future__ import annotations

import logging
import math
import random
import sys
import weakref
from collections.abc import Callable, Collection
from functools import partial
from threading import Thread
from time import monotonic
from types import CodeType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from txpool import loops
from txpool.errors import described

if TYPE_CHECKING:
    from txpool.pool.state import PoolState

log = logging.getLogger("txpool.pool")

C = TypeVar("C")

#: The lifetime and the keepalive of each connection are shortened by up to this share, so that those opened together
#: are not closed, or checked, together.
JITTER = 0.025


class Holder(weakref.ref[Thread]):
    """The thread that holds a connection, which is not kept for that; and its task, if a task of a loop holds it.

    From Python 3.14 on, a Thread keeps its context, and that an ambient transaction that nobody can end any more.
    """

    __slots__ = ("name", "task")
    name: str
    #: The task's name; empty if it is none's.
    task: str

    def __new__(cls, thread: Thread, task: str = "") -> Self:
        self = super().__new__(cls, thread)
        self.name, self.task = thread.name, task
        return self

    def __str__(self) -> str:
        return f"task {self.task!r} of {self.name}" if self.task else self.name


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


class Member(weakref.ref["Pooled[Any]"]):
    """A slot in use, and weakly the `Pooled` in it: it can close the connection of one that is gone."""

    __slots__ = ("connector", "raw")
    connector: Connector[Any]
    raw: Any

    def close(self) -> None:
        """Close the connection, if one was opened; errors of closing are only logged."""
        if hasattr(self, "raw"):
            _close(self.connector, self.raw)


def _close(connector: Connector[C], raw: C) -> None:
    try:
        connector.close(raw)
    except Exception as error:
        log.debug("closing a connection failed: %s", described(error))


class Pooled(Generic[C]):
    """A slot of a pool's `max_size`, and the connection in it.

    It exists before its connection is open, so that `max_size` counts connections that are being opened, too. Its
    user sets `dirty` after changing session attributes, so that it is reset when it is given back. If it is dropped
    without that (an interrupt came between two steps, or a program forgot it), its own finaliser has the pool close it:
    the finaliser of its user need not call the pool, and must not.
    """

    __slots__ = (
        "__weakref__",
        "checked_at",
        "completing_since",
        "connector",
        "dirty",
        "doubted",
        "dropped",
        "expires",
        "gtrid",
        "holder",
        "is_open",
        "jitter",
        "leak_reported",
        "member",
        "on_its_way",
        "plain",
        "pool_state",
        "raw",
        "results",
        "returned_at",
        "separate",
        "since",
        "stack",
        "taken_at",
        "use_seconds",
        "uses",
    )

    raw: C

    def __init__(
        self,
        connector: Connector[C],
        pool_state: weakref.ref[PoolState[C]],
        max_lifetime: float,
        when_gone: Callable[[Member], object],
    ) -> None:
        self.connector = connector
        self.pool_state: weakref.ref[PoolState[C]] | None = pool_state
        self.member = Member(self, when_gone)
        self.is_open = False
        self.dirty = False
        #: Another connection of the pool was lost since it came back: it is checked before it is handed out.
        self.doubted = False
        #: Nobody holds it any more, and it is neither idle nor another's yet: an interrupt now has it closed.
        self.on_its_way = False
        #: Its finaliser was called: it will be closed, even if another finaliser gives it back.
        self.dropped = False
        #: Opened under other credentials than the pool's: for one user, and never handed to another.
        self.separate = False
        #: A user has it outside any transaction, so that a flush may cancel what it executes. Each take ends that.
        self.plain = False
        #: The transaction that has it, or had it last.
        self.gtrid = ""
        #: When the statement that executes on it has begun, by the monotonic clock; 0 while none does. Other threads
        #: read it.
        self.since = 0.0
        #: When the end of its transaction has begun, in the same way.
        self.completing_since = 0.0
        #: Weak references to what its user has open on it, and a forked child must not close.
        self.results: Collection[weakref.ref[Any]] = ()
        #: By the monotonic clock; 0 if the pool must not hand it out again.
        self.jitter = 1 - JITTER * random.random()  # noqa: S311
        self.expires = monotonic() + max_lifetime * self.jitter
        self.returned_at = self.checked_at = -math.inf
        self.taken_at = 0.0
        #: The thread that has taken it, if any. Append and pop are atomic, so that only one give_back succeeds.
        self.holder: list[Holder] = []
        self.stack: list[tuple[CodeType, int]] = []
        self.leak_reported = False
        # Only the holder writes these, so they need no lock.
        self.uses = 0
        self.use_seconds = 0.0

    def open(self, timeout: float) -> None:
        """Connect; the driver's own error if it cannot."""
        self.member.connector = self.connector
        try:
            if loops.used:
                self.raw = self.member.raw = loops.in_thread(partial(self.connector.connect, timeout=timeout))
            else:
                self.raw = self.member.raw = self.connector.connect(timeout=timeout)
        finally:
            self.is_open = hasattr(self, "raw")  # also if an interrupt has come just behind the connect
        self.returned_at = monotonic()

    def close(self) -> None:
        """Close the connection; errors of closing are only logged."""
        if self.is_open:
            _close(self.connector, self.raw)
            self.is_open = False

    def mark_unreusable(self) -> None:
        """Have it closed when it is given back. No I/O."""
        self.expires = 0.0

    def check_due(self, keepalive: float) -> float:
        """When it is to be checked while it is idle, by the monotonic clock."""
        return max(self.returned_at, self.checked_at) + keepalive * self.jitter

    def __del__(self, program_ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.pool_state is None:  # the parent's, after a fork
            return
        if program_ends():
            self._close_at_end()
            return
        state = self.pool_state()
        if state is None or state.closed:
            self.close()
        else:
            # The collector calls the finalisers of a cycle in any order: that of its user may give it back before or
            # after this one. It must not be handed out in either case.
            self.dropped = self.dirty = True
            state.take_idle(self)
            if id(self) in state.members:
                # A finaliser may run while its thread holds any lock: the maintenance thread does the rest.
                state.maintenance_queue.put(self)

    def _close_at_end(self) -> None:
        """Close it when the modules, and so this one, may have no names any more."""
        try:
            if self.is_open:
                self.connector.close(self.raw)
        except Exception:
            return  # its session ends with the process

    def __repr__(self) -> str:
        state = "opening" if not self.is_open else "taken" if self.holder else "idle"
        return f"<{type(self).__name__} {state}, used {self.uses} times>"
