"""Where synchronous code waits: a call that a task of an event loop has made waits in the loop instead.

A task's call runs in a greenlet, see `txpool.aio.bridge`. This is what the waits below ask: `used` first, which is
false for as long as no loop was ever used in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import sleep as _sleep
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: What to wait for: as psycopg's numbers, and those of `selectors`.
READ: Final = 1
WRITE: Final = 2


class OneShotEvent(Protocol):
    """A one-shot event with the methods of a lock that is held: any thread releases it, and the call acquires it."""

    def acquire(self, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


class Cancellation:
    """A cancellation that may come, and what it calls. From any thread."""

    __slots__ = ("_called", "_came")

    def __init__(self) -> None:
        self._called: Callable[[], object] | None = None
        self._came = False

    def call(self, function: Callable[[], object]) -> None:
        """Call this instead of what was called before: once it comes, or now if it has come. Perhaps twice."""
        self._called = function
        if self._came:
            function()

    def come(self) -> None:
        """It has come."""
        self._came = True
        if self._called is not None:
            self._called()


class ThreadsWork(Protocol):
    """What a thread does for a task."""

    @property
    def loop(self) -> AbstractEventLoop:
        """That of the task."""

    @property
    def cancellation(self) -> Cancellation:
        """That of the task, from now on."""


class HasLocks(Protocol):
    """A transaction that a call makes."""

    gtrid: str
    in_loop: bool
    awaits: bool
    #: Makes its locks.
    new_lock: Callable[[], Any]


class TaskCall(Protocol):
    """A call of a task that is under way. Every method is called in its greenlet, and may switch to the loop."""

    @property
    def task_name(self) -> str:
        """The name of its task, for people; empty if that is not known."""

    def wait_for(self, descriptor: int, events: int, timeout: float | None = None) -> int:
        """Wait until the descriptor is ready for one of these events; 0 if it is not within `timeout` seconds."""

    def steps(self, steps: Generator[Any, Any, T], descriptor: int, interval: float | None = None) -> T:
        """Run a generator of psycopg's steps. With an interval, it is asked as often, also if nothing has come."""

    def signal(self) -> OneShotEvent:
        """A signal that this call may wait for."""

    def in_thread(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call what only blocks in a thread, in a copy of the context. A cancellation waits for its end."""

    def after_turn(self, function: Callable[[], object]) -> None:
        """Call this once behind the turn of this call's loop that is under way, however many of its calls ask.

        As long as other calls go on, it may be a few turns later.
        """

    def adopt(self, transaction: HasLocks) -> None:
        """The call has made this transaction: give it locks that tasks can wait for."""


def _none() -> None:
    return None


#: Whether a loop was ever used.
used = False
#: The call in which this code runs; None outside of any.
current: Callable[[], TaskCall | None] = _none
#: What this thread does for a task; None in any other thread.
serving: Callable[[], ThreadsWork | None] = _none


_at_first_use: list[Callable[[], object]] = []


def when_used(install: Callable[[], object]) -> None:
    """Call this once a loop is used: so what it changes costs nothing before."""
    _at_first_use.append(install)
    if used:
        install()


def use(find: Callable[[], TaskCall | None], find_work: Callable[[], ThreadsWork | None]) -> None:
    """A loop is used from now on; these are to be `current` and `serving`."""
    global used, current, serving
    current, serving, used = find, find_work, True
    for install in _at_first_use:
        install()


def in_thread(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call what only blocks: in a call of a task by a thread, else here."""
    if used and (call := current()) is not None:
        return call.in_thread(function, *arguments)
    return function(*arguments)


def sleep(seconds: float) -> None:
    """Sleep, without holding a loop."""
    if used and (call := current()) is not None:
        call.signal().acquire(seconds)
    else:
        _sleep(seconds)
