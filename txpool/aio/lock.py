"""A lock that tasks and threads wait for together, first in first out.

Its owner is a call of a task, a block of several calls, or a thread. Beside it is what wakes a call that waits.
"""

from __future__ import annotations

import asyncio
import select
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic
from types import TracebackType
from typing import Any

from txpool.aio.threads import working_for
from txpool.errors import ProgrammingError
from txpool.locks import Lock

#: The innermost open block of a connection, as COPY's: of a task, and of the tasks and threads that it starts in it.
innermost: ContextVar[Any] = ContextVar("txpool_block", default=None)
#: What tells the call in which this code runs.
owner_of_calls: list[Callable[[], Any]] = []


class _Waiter:
    __slots__ = ("owner", "woken")

    def __init__(self, owner: object, woken: Any) -> None:
        self.owner = owner
        self.woken = woken


class TaskLock:
    """Reentrant, as an RLock. Two calls of one thread exclude each other, and a call may be suspended while it has it.

    In the loop's own thread, outside of any call, it is refused: whoever waited for it there would hold the loop. Where
    it is not `strict`, only if it is held.
    """

    __slots__ = ("_count", "_gtrid", "_mutex", "_owner", "_strict", "_waiters")

    def __init__(self, gtrid: str, *, strict: bool = True) -> None:
        self._gtrid = gtrid
        self._strict = strict
        #: Of the state below; never held over a wait.
        self._mutex = Lock()
        self._owner: object = None
        self._count = 0
        self._waiters: deque[_Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        call = owner_of_calls[0]()
        if call is not None:
            owner: object = call.owner or call
        else:
            owner = getattr(working_for, "call", None) or get_ident()
        if self._owner == owner:
            self._count += 1
            return True
        in_loop = call is None and type(owner) is int and asyncio._get_running_loop() is not None
        if in_loop and self._strict and self._gtrid:
            raise self._would_hold_the_loop()
        with self._mutex:
            if self._owner is None:
                self._owner, self._count = owner, 1
                return True
            if not blocking:
                return False
            if in_loop:
                raise self._would_hold_the_loop()
            if (block := innermost.get()) is not None and block.is_within(self._owner):
                raise ProgrammingError(
                    f"{self._gtrid or 'a connection'} is within a {block.kind} of the task that has started this, and "
                    "can do nothing else before that block's end. Nothing was sent"
                )
            if call is not None:
                waiter = _Waiter(owner, call.signal())
            else:
                waiter = _Waiter(owner, allocate_lock())
                waiter.woken.acquire()
            self._waiters.append(waiter)
        try:
            waiter.woken.acquire(timeout=timeout)
        except BaseException:
            if self._leave(waiter):
                self.release()
            raise
        return self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> bool:
        """Stop waiting; whether it was handed over by then."""
        with self._mutex:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                return False
            return True

    def release(self) -> None:
        self._count -= 1
        if self._count:
            return
        with self._mutex:
            if not self._waiters:
                self._owner = None
                return
            following = self._waiters.popleft()
            self._owner, self._count = following.owner, 1
        following.woken.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _would_hold_the_loop(self) -> ProgrammingError:
        return ProgrammingError(
            f"{self._gtrid} was begun in an event loop, and this synchronous call in it would hold the loop: write "
            "`await txpool.aconnect(…)`, and await what its connections do (SQLAlchemy: "
            "`txpool.create_async_engine(…)`); or have a thread call it, by `await asyncio.to_thread(…)`. Nothing was "
            "done"
        )


class Signal:
    """As `txpool.loops.OneShotEvent`."""

    __slots__ = ("_call", "_set", "number")

    def __init__(self, call: Any) -> None:
        self._call = call
        self._set = False
        self.number = 0

    def is_set(self) -> bool:
        """Whether it was released, and not acquired since."""
        return self._set

    def acquire(self, timeout: float = -1) -> bool:
        call = self._call
        until = None if timeout < 0 else monotonic() + timeout
        if call.blocking:
            return self._acquire_blocking(until)
        if not self._set:
            call.sleep_until(self, None if timeout < 0 else timeout)
            if call.blocking:
                return self._acquire_blocking(until)
        was_set, self._set = self._set, False
        return was_set

    def _acquire_blocking(self, until: float | None) -> bool:
        pause = select.poll()  # of nothing: it sleeps
        while not self._set:
            if until is not None and monotonic() >= until:
                return False
            pause.poll(1)
        self._set = False
        return True

    def release(self) -> None:
        if self._set:
            raise RuntimeError("it was released before")
        self._set = True
        try:
            self._call.wake_soon(self.number)
        except BaseException:  # an interrupt, perhaps before the loop was told
            self._call.wake_soon(self.number)
            raise
