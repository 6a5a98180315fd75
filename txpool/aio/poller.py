"""What an event loop holds for the calls that wait in it: their tasks, and the descriptors that they wait for.

A descriptor stays registered with an epoll of its own, of which the loop watches one descriptor: to register it with
the loop for each wait, and to remove it again, would cost more than the wait. It is armed for one event at a time, and
the kernel forgets it when it is closed: nothing of it is left when its number is another's.
"""

from __future__ import annotations

import select
from asyncio import AbstractEventLoop
from collections import deque
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, ref

from txpool.loops import READ, WRITE

#: How many calls go on before the loop does other work: so many hold it for a few milliseconds.
_AT_ONCE: Final = 8


class Waiting(Protocol):
    """A call that waits."""

    def wake(self, number: int, ready: int) -> None:
        """Its wait of this number is over."""


class Wakings:
    """Those that other threads have woken: the loop is told once for all of them. It refers to no task."""

    __slots__ = ("_told", "_woken")

    def __init__(self) -> None:
        self._woken: deque[tuple[Waiting, int]] = deque()
        self._told = False

    def add(self, loop: AbstractEventLoop, waiting: Waiting, number: int) -> None:
        """The wait of this number is over. RuntimeError if the loop is closed."""
        self._woken.append((waiting, number))
        if not self._told:
            self._told = True
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._told = False  # first: what is added from here on is delivered by this call, or by the next
        woken = self._woken
        for _ in range(len(woken)):
            waiting, number = woken.popleft()
            waiting.wake(number, 0)


class Poller:
    """One for each loop, which alone refers to it: what it holds goes with the loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._epoll = select.epoll()
        #: By descriptor: who waits, in which wait, for which events of epoll's, and what keeps its task.
        self._waiting: dict[int, tuple[Waiting, int, int, object]] = {}
        #: What keeps the tasks of those that wait for no descriptor.
        self.held: set[object] = set()
        self.wakings = Wakings()
        loop.add_reader(self._epoll.fileno(), self._drain)

    def watch(self, descriptor: int, events: int, waiting: Waiting, number: int, kept: object) -> None:
        """Wake it once, as soon as the descriptor is ready for one of these events."""
        mask = select.EPOLLONESHOT
        if events & READ:
            mask |= select.EPOLLIN
        if events & WRITE:
            mask |= select.EPOLLOUT
        self._waiting[descriptor] = waiting, number, mask, kept
        try:
            self._epoll.modify(descriptor, mask)
        except FileNotFoundError:
            self._epoll.register(descriptor, mask)

    def unwatch(self, descriptor: int) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(descriptor, None)

    def _drain(self) -> None:
        ready = self._epoll.poll(0, _AT_ONCE)
        try:
            while True:  # not `while` with a condition: see tests/unit/test_interrupts.py
                if not ready:
                    break
                descriptor, event = ready.pop()
                found = self._waiting.pop(descriptor, None)
                if found is not None:
                    # An error is told for both.
                    events = (READ if event & ~select.EPOLLOUT else 0) | (WRITE if event & ~select.EPOLLIN else 0)
                    found[0].wake(found[1], events)
        finally:
            for descriptor, _ in ready:  # an interrupt
                left = self._waiting.get(descriptor)
                if left is not None:
                    self._epoll.modify(descriptor, left[2])


_pollers: WeakKeyDictionary[AbstractEventLoop, ref[Poller]] = WeakKeyDictionary()


def poller_of(loop: Any) -> Poller:
    """The loop's own, made by its first call."""
    found = _pollers.get(loop)
    poller = None if found is None else found()
    if poller is None:
        poller = Poller(loop)
        _pollers[loop] = ref(poller)
    return poller
