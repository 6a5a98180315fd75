"""A lock that tasks and threads wait for together, first in first out.

Its owner is a call of a task, a block of several calls, or a thread. Beside it is what wakes a call that waits.
"""

from __future__ import annotations

import asyncio
from _thread import LockType, allocate_lock, get_ident
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from time import monotonic
from types import TracebackType
from typing import Any, Final, Protocol

from txpool.aio.threads import working_for
from txpool.errors import ProgrammingError
from txpool.locks import Lock
from txpool.resources.deadlines import Deadlines, HeldByAnother

#: The innermost open block of a connection, as COPY's: of a task, and of the tasks and threads that it starts in it.
innermost: ContextVar[Any] = ContextVar("txpool_block", default=None)
#: What tells the call in which this code runs.
owner_of_calls: list[Callable[[], Any]] = []


#: After so many turns the loop has begun to close a generator that nobody has any more, and those around it.
TURNS: Final = 16
#: Seconds after which the end of a transaction looks whether it is to wait on.
_LOOK_AGAIN: Final = 0.1


class _Ends(Protocol):
    deadlines: Deadlines

    def set_rollback_only(self, reason: BaseException | None = None) -> None: ...


class CompletionWait:
    """How long the end of a transaction waits for what another task holds. Called if its own task is cancelled."""

    __slots__ = ("_cancelled", "_transaction")

    def __init__(self, transaction: _Ends | None, *, cancelled: bool) -> None:
        self._transaction = transaction
        self._cancelled = cancelled

    def __call__(self, cancelled: BaseException) -> None:
        if self._transaction is not None:
            self._transaction.set_rollback_only(cancelled)
        self._cancelled = True

    @property
    def overdue(self) -> bool:
        """Whether its deadline has passed."""
        until = None if self._transaction is None else self._transaction.deadlines.before_decision()
        return until is not None and monotonic() >= until

    @property
    def over(self) -> bool:
        """Whether it waits no longer for who does nothing: it rolls back."""
        return self._cancelled or self.overdue


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

    __slots__ = ("_count", "_following", "_gtrid", "_left", "_mutex", "_owner", "_strict", "_waiters")

    def __init__(self, gtrid: str, left: Callable[[bool], float] | None = None, *, strict: bool = True) -> None:
        self._gtrid = gtrid
        #: How long one waits, as a `DeadlineLock` asks it; None if it is for ever.
        self._left = left
        self._strict = strict
        #: Of the state below; never held over a wait.
        self._mutex = Lock()
        self._owner: object = None
        self._count = 0
        self._waiters: list[_Waiter] = []
        #: Who was handed it last, if an interrupt may have kept that from being woken.
        self._following: _Waiter | None = None

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
        try:
            if self._waiters:
                self._stop_waiting(owner)  # as an interrupt may have kept it from doing
            with self._mutex:
                if call is not None:
                    call.locks[self] = None  # before it has it: an interrupt may come at any time
                if self._owner is None:
                    self._owner, self._count = owner, 1
                    return True
                if not blocking:
                    return False
                if in_loop:
                    raise self._would_hold_the_loop()
                waiter = self._queued(owner, call)
            self._wait(waiter, timeout)
            return self._leave(waiter)
        except BaseException:  # perhaps an interrupt, with or without the lock
            self.abandon(owner)
            raise

    def _queued(self, owner: object, call: Any) -> _Waiter:
        if self._is_held_around() and type(getattr(owner, "told", None)) is not CompletionWait:
            held: Any = self._owner
            raise ProgrammingError(
                f"{self._gtrid or 'a connection'} is within a {held.kind} of the task that has started this, and "
                "can do nothing else before that block's end. Nothing was sent"
            )
        if call is not None:
            waiter = _Waiter(owner, call.signal())
            waiter.woken.awaited = self
        else:
            waiter = _Waiter(owner, allocate_lock())
            waiter.woken.acquire()
        self._waiters.append(waiter)
        return waiter

    def _is_held_around(self) -> bool:
        """Whether a block has it that this task, or the one that has started this, has opened."""
        block = innermost.get()
        return block is not None and block.is_within(self._owner)

    def _wait(self, waiter: _Waiter, timeout: float) -> None:
        at_end = getattr(waiter.owner, "told", None)
        if type(at_end) is CompletionWait:
            self._wait_at_end(waiter, at_end)
        elif timeout >= 0 or self._left is None:
            waiter.woken.acquire(timeout=timeout)
        else:
            waited = False
            while not waiter.woken.acquire(timeout=self._left(waited)):
                waited = True

    def _wait_at_end(self, waiter: _Waiter, wait: CompletionWait) -> None:
        in_loop, turns = type(waiter.woken) is Signal, 0
        while not waiter.woken.acquire(timeout=0 if in_loop and turns and turns < TURNS else _LOOK_AGAIN):
            block: Any = self._owner
            if self._is_held_around() and not block.closing:
                turns += 1 if in_loop else TURNS
                if turns >= TURNS:
                    name = block.connection.datasource.name
                    raise HeldByAnother(
                        f"a {block.kind} on the connection of {name} was still open at the end of {self._gtrid}. That "
                        f"connection is closed, and all rolls back. Let the {block.kind} end before: leave its block, "
                        "or close what gives its rows by aclose()",
                        block.while_idle,
                    )
            elif wait.over and getattr(block, "idle", False):
                raise HeldByAnother(
                    f"the end of {self._gtrid} has waited for a {block.kind} of {block.task}, which holds the "
                    f"connection of {block.connection.datasource.name} and does nothing with it. That connection is "
                    "closed, and all rolls back",
                    block.while_idle,
                )
            if wait.overdue:
                raise HeldByAnother("")

    def abandon(self, owner: object) -> None:
        """This owner has ended, or gives up: undo what an interrupt has left of it, and do what it has left undone."""
        self._stop_waiting(owner)
        if self._owner == owner:
            self._count = 1
            self.release()
        else:
            self._wake_following()

    def _stop_waiting(self, owner: object) -> None:
        for waiter in [each for each in [*self._waiters] if each.owner == owner]:
            self._leave(waiter)

    def finish_owner(self, call: Any) -> None:
        """This call waits for it, and blocks its thread: the owner, if it is suspended there, would never go on."""
        owner: Any = self._owner
        if type(owner) is type(call) and owner.loop is call.loop:
            owner.go_on_blocking()
        elif type(owner) is not int and owner is not None and owner.loop is call.loop:  # a block of another task
            raise ProgrammingError(
                f"{self._gtrid or 'a connection'} is within a {owner.kind} of another task, and what waits for that "
                "block's end was closed, perhaps with its event loop: it would wait for ever. Nothing was sent"
            )

    def _leave(self, waiter: _Waiter) -> bool:
        """Stop waiting; whether it was handed over by then."""
        with self._mutex:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                return False
            return True

    def release(self) -> None:
        if self._count > 1:
            self._count -= 1
            return
        released = False
        try:
            with self._mutex:
                if not self._waiters:
                    self._owner, self._count, released = None, 0, True
                    return
                # No call comes between these, so no interrupt does.
                self._following = following = self._waiters[0]
                self._owner, self._count, released = following.owner, 1, True
                del self._waiters[0]
            self._wake(following)
        except BaseException:
            if not released:
                self.release()
            else:
                try:
                    self._wake_following()
                except BaseException:  # a second one: it is woken all the same
                    self._wake_following()
            raise

    def _wake_following(self) -> None:
        if (following := self._following) is not None:
            self._wake(following)

    def _wake(self, following: _Waiter) -> None:
        with suppress(RuntimeError):  # it was woken before, and an interrupt came
            following.woken.release()
        if self._following is following:
            self._following = None

    __enter__ = acquire  # a call of it could be interrupted behind its end

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


def abandon(locks: Iterable[TaskLock], owner: object) -> None:
    """An owner has ended, which has asked for these: an interrupt in their own code may have left them held."""
    for lock in locks:
        if lock._owner is owner or lock._waiters or lock._following is not None:
            lock.abandon(owner)


class Signal:
    """As `txpool.loops.OneShotEvent`."""

    __slots__ = ("_blocked", "_call", "_set", "awaited", "number")

    def __init__(self, call: Any) -> None:
        self._call = call
        self._set = False
        #: Released to wake the call, if that blocks its thread.
        self._blocked: LockType | None = None
        #: The lock for which the call waits, if it waits for one.
        self.awaited: TaskLock | None = None
        self.number = 0

    def is_set(self) -> bool:
        """Whether it was released, and not acquired since."""
        return self._set

    def acquire(self, timeout: float = -1) -> bool:
        call = self._call
        until = None if timeout < 0 else monotonic() + timeout
        if not self._set and not call.blocking:
            call.sleep_until(self, None if timeout < 0 else timeout)
        if not self._set and call.blocking:
            self._block(until)
        was_set, self._set = self._set, False
        return was_set

    def _block(self, until: float | None) -> None:
        self._blocked = blocked = allocate_lock()
        blocked.acquire()
        if self.awaited is not None:
            self.awaited.finish_owner(self._call)
        if not self._set:  # looked at again, since who has released it before has seen nobody wait
            blocked.acquire(timeout=-1 if until is None else max(until - monotonic(), 0))

    def release(self) -> None:
        before, self._set = self._set, True
        try:
            self._wake()
        except BaseException:  # an interrupt, perhaps before the call was told
            self._wake()
            raise
        if before:  # and the call was perhaps not told, since interrupts came
            raise RuntimeError("it was released before")

    def _wake(self) -> None:
        blocked = self._blocked
        if blocked is not None:
            with suppress(RuntimeError):  # it was told before
                blocked.release()
        self._call.wake_soon(self.number)
