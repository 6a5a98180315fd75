"""What an event loop holds for the calls that wait in it: their tasks, and the descriptors and times they wait for.

A descriptor stays registered with an epoll of its own, of which the loop watches one descriptor: to register it with
the loop for each wait, and to remove it again, would cost more than the wait. It is armed for one event at a time, and
the kernel forgets it when it is closed: nothing of it is left when its number is another's.

All times have one timer of the loop's. Most waits are over long before theirs, and that costs a dictionary's entry.
"""

from __future__ import annotations

import select
from asyncio import AbstractEventLoop, Future, TimerHandle, _get_running_loop
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, ref

from txpool.loops import READ, WRITE

#: How many calls go on in a turn of the loop before it does other work: at most, and if that is long enough already.
_AT_ONCE: Final = 8
_AT_LEAST: Final = 4
#: Seconds after which a turn is long enough.
_TURN: Final = 0.001
#: Seconds after which the loop is asked again to call this: an interrupt may have ended its callback.
_AGAIN: Final = 1.0
#: For how many turns more, and seconds, what is called behind a turn lets other calls ask for it, too.
_TURNS_MORE: Final = 3
_GATHERING: Final = 0.004
#: What epoll is to tell of, by the numbers READ, WRITE and both.
_MASKS: Final = (
    select.EPOLLONESHOT,
    select.EPOLLONESHOT | select.EPOLLIN,
    select.EPOLLONESHOT | select.EPOLLOUT,
    select.EPOLLONESHOT | select.EPOLLIN | select.EPOLLOUT,
)


class Waiting(Protocol):
    """A call that waits."""

    def wake(self, number: int, ready: int) -> None:
        """Its wait of this number is over."""


class Turn:
    """The loop's present turn: since when, and what went on in it.

    What calls do in one turn, their tasks do in the next, before any other call goes on. So a turn is as long as both,
    and whatever else the loop does.
    """

    __slots__ = ("_begun", "_ends", "_next_until", "went_on")

    def __init__(self) -> None:
        #: How many calls have gone on in it since their descriptors were ready; 0 once somebody has looked.
        self.went_on = 0
        #: How many transactions have begun in it.
        self._begun = 0
        #: When it is long enough; and until when the loop need not be asked to tell of the next one.
        self._ends = self._next_until = -inf

    def is_over(self, loop: AbstractEventLoop) -> bool:
        """Whether it is long enough, and what is left to do is for the next one."""
        now = monotonic()
        if now >= self._next_until:
            loop.call_soon(self._next)
            self._next_until = now + _AGAIN
        return now >= self._ends

    def may_begin(self, loop: AbstractEventLoop) -> bool:
        """Whether another transaction may begin in it; else in a later one."""
        over = self.is_over(loop)
        self._begun += 1
        return self._begun <= (_AT_LEAST if over else _AT_ONCE)

    def _next(self) -> None:
        """Called by the loop before all else that this turn has left to the next."""
        self._next_until, self._begun = -inf, 0
        self._ends = monotonic() + _TURN


class Wakings:
    """Those that are woken, from any thread: the loop is told once for all of them. It refers to no task."""

    __slots__ = ("_after_turn", "_told_until", "_turn", "_woken")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._woken: deque[tuple[Waiting, int]] = deque()
        #: Until when, by the monotonic clock, the loop need not be told.
        self._told_until = -inf
        #: What is called behind the loop's turn, and until when it need not be scheduled again.
        self._after_turn: dict[Callable[[], object], float] = {}

    def call_after_turn(self, loop: AbstractEventLoop, function: Callable[[], object]) -> None:
        """Have the loop call it once behind its turn, however often this is asked. RuntimeError if it is closed.

        As long as other calls go on in each of the next turns, it waits for a few of these: they may ask for it, too.
        """
        now = monotonic()
        if now >= self._after_turn.get(function, -inf):
            loop.call_soon(self._call, loop, function, now + _GATHERING, 0)
            self._after_turn[function] = now + _AGAIN

    def _call(self, loop: AbstractEventLoop, function: Callable[[], object], until: float, turns: int) -> None:
        went_on, self._turn.went_on = self._turn.went_on, 0
        others = went_on if turns else went_on - 1  # one of them has asked for it
        if others > 0 and turns < _TURNS_MORE and monotonic() < until:
            loop.call_soon(self._call, loop, function, until, turns + 1)
            return
        self._after_turn.pop(function, None)  # first: whoever asks from here on has it called again
        function()

    def add(self, loop: AbstractEventLoop, waiting: Waiting, number: int) -> None:
        """The wait of this number is over. RuntimeError if the loop is closed."""
        self._woken.append((waiting, number))
        self._tell(loop)

    def _tell(self, loop: AbstractEventLoop) -> None:
        now = monotonic()
        if now >= self._told_until:
            self._told_until = now + _AGAIN
            try:
                tell = loop.call_soon if _get_running_loop() is loop else loop.call_soon_threadsafe
                tell(self._deliver, loop)
            except BaseException:
                self._told_until = -inf
                raise

    def _deliver(self, loop: AbstractEventLoop) -> None:
        self._told_until = -inf  # first: what is added from here on is delivered by this call, or by the next
        woken = self._woken
        try:
            woke = 0
            while True:  # neither with a condition nor ended by one: see tests/unit/test_interrupts.py
                if not woken or woke == _AT_ONCE or (woke >= _AT_LEAST and self._turn.is_over(loop)):
                    break
                waiting, number = woken[0]
                waiting.wake(number, 0)
                woken.popleft()
                woke += 1
            if woken:  # a flush of the log wakes all that have waited for it
                self._tell(loop)
        except BaseException as error:
            if isinstance(error, Exception):  # else it was an interrupt, perhaps before that was woken
                woken.popleft()
            loop.call_soon(self._deliver, loop)
            raise


#: Until when by the monotonic clock a call waits, in which wait, and what keeps its task.
_Timed = tuple[float, int, object]


class Poller:
    """One for each loop, which alone refers to it: what it holds goes with the loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._epoll = select.epoll()
        #: By descriptor: who waits, in which wait, for which events of epoll's, and what keeps its task.
        self._waiting: dict[int, tuple[Waiting, int, int, object]] = {}
        #: Those that wait for a time, perhaps besides, or for what other code tells.
        self._timed: dict[Waiting, _Timed] = {}
        #: When the timer comes, and that.
        self._next = inf
        self._timer: TimerHandle | None = None
        #: What wakes those that wait to begin a transaction, and until when the loop need not be asked to look at them.
        self._beginning: deque[Future[None]] = deque()
        self._asked_until = -inf
        self.turn = Turn()
        self.wakings = Wakings(self.turn)
        loop.add_reader(self._epoll.fileno(), self._drain, loop)

    async def begin(self, loop: AbstractEventLoop) -> None:
        """Wait until another transaction may begin in a turn. First come, first served; nobody looks in each turn."""
        if self._beginning or not self.turn.may_begin(loop):
            self._beginning.append(loop.create_future())
            self._ask(loop)
            await self._beginning[-1]

    def _ask(self, loop: AbstractEventLoop) -> None:
        now = monotonic()
        if now >= self._asked_until:
            loop.call_soon(self._admit, loop)
            self._asked_until = now + _AGAIN

    def _admit(self, loop: AbstractEventLoop) -> None:
        self._asked_until = -inf
        try:
            while True:  # neither with a condition nor ended by one: see tests/unit/test_interrupts.py
                if not self._beginning or not self.turn.may_begin(loop):
                    break
                if not self._beginning[0].done():  # else its task was cancelled
                    self._beginning[0].set_result(None)
                self._beginning.popleft()
        finally:
            if self._beginning:
                self._ask(loop)

    def watch(self, descriptor: int, events: int, waiting: Waiting, number: int, kept: object) -> None:
        """Wake it once, as soon as the descriptor is ready for one of these events."""
        mask = _MASKS[events]
        self._waiting[descriptor] = waiting, number, mask, kept
        try:
            self._epoll.modify(descriptor, mask)
        except FileNotFoundError:
            self._epoll.register(descriptor, mask)

    def unwatch(self, descriptor: int) -> None:
        """Nobody waits for it any more.

        It is not left armed: if a forked child has it, too, the kernel would tell of it even once it is closed here, by
        a number that may be another's.
        """
        if self._waiting.pop(descriptor, None) is not None:
            with suppress(OSError):  # it is closed
                self._epoll.unregister(descriptor)

    def wake_after(
        self, loop: AbstractEventLoop, seconds: float | None, waiting: Waiting, number: int, kept: object
    ) -> None:
        """Keep its task until `forget`, and wake it after so many seconds, if it then still waits."""
        now = monotonic()
        until = inf if seconds is None else now + seconds
        self._timed[waiting] = until, number, kept
        if until < self._next or self._next < now - _AGAIN:
            self._set_timer(loop, min(until, self._next))

    def forget(self, waiting: Waiting) -> None:
        """It waits no more."""
        self._timed.pop(waiting, None)

    def _set_timer(self, loop: AbstractEventLoop, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(max(until - monotonic(), 0), self._wake_timed, loop)
        self._next = until

    def _wake_timed(self, loop: AbstractEventLoop) -> None:
        self._timer, self._next = None, inf
        try:
            for waiting, entry in self._due():
                self._wake(waiting, entry)
        finally:  # no `if` ends what is in the block: see tests/unit/test_interrupts.py
            until = min((entry[0] for entry in self._timed.values()), default=inf)
            if until < self._next:
                self._set_timer(loop, until)

    def _due(self) -> list[tuple[Waiting, _Timed]]:
        now = monotonic()
        return [each for each in self._timed.items() if each[1][0] <= now]

    def _wake(self, waiting: Waiting, entry: _Timed) -> None:
        waiting.wake(entry[1], 0)
        if self._timed.get(waiting) is entry:
            del self._timed[waiting]

    def _drain(self, loop: AbstractEventLoop) -> None:
        waiting, descriptor, woke = self._waiting, -1, 0
        try:
            ready = self._ready_behind(woke, loop)
            while True:  # neither with a condition nor ended by one: see tests/unit/test_interrupts.py
                if not ready:
                    break
                descriptor, event = ready[-1]
                found = waiting.get(descriptor)
                if found is not None:
                    # An error is told for both.
                    events = (READ if event & ~select.EPOLLOUT else 0) | (WRITE if event & ~select.EPOLLIN else 0)
                    found[0].wake(found[1], events)
                    if waiting.get(descriptor) is found:
                        del waiting[descriptor]
                ready.pop()
                woke += 1
                ready = ready or self._ready_behind(woke, loop)
        except BaseException as error:
            if isinstance(error, Exception):  # else it was an interrupt, perhaps before that was woken
                waiting.pop(descriptor, None)
            for descriptor, left in [*waiting.items()]:
                with suppress(OSError):  # it is closed
                    self._epoll.modify(descriptor, left[2])
            raise

    def _ready_behind(self, woke: int, loop: AbstractEventLoop) -> list[tuple[int, int]]:
        """Descriptors that are ready, once so many have been in this turn, and their events; none if it is over."""
        self.turn.went_on = woke
        if woke % _AT_LEAST or woke == _AT_ONCE or (woke and self.turn.is_over(loop)):
            return []
        ready = self._epoll.poll(0, _AT_LEAST)
        if len(ready) == _AT_LEAST:
            self.turn.is_over(loop)  # asked before their tasks go on: they do in the next turn, which knows its start
        return ready


_pollers: WeakKeyDictionary[AbstractEventLoop, ref[Poller]] = WeakKeyDictionary()


def poller_of(loop: Any) -> Poller:
    """The loop's own, made by its first call."""
    found = _pollers.get(loop)
    poller = None if found is None else found()
    if poller is None:
        poller = Poller(loop)
        _pollers[loop] = ref(poller)
    return poller


def block(descriptor: int, events: int, timeout: float | None) -> int:
    """Wait as a call does, but hold the loop: for one whose loop is gone."""
    ready = select.poll()
    wanted = (select.POLLIN if events & READ else 0) | (select.POLLOUT if events & WRITE else 0)
    ready.register(descriptor, wanted)
    found = ready.poll(None if timeout is None else timeout * 1000)
    if not found:
        return 0
    event = found[0][1]
    return (events & READ if event & ~select.POLLOUT else 0) | (events & WRITE if event & ~select.POLLIN else 0)
