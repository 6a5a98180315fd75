"""The bridge: a task's call runs synchronous code in a greenlet, and where that waits the loop goes on.

The greenlet runs in the loop's thread, and in the task's own context. A wait registers with the loop, whose callback
switches straight back into the greenlet: the task itself is woken once, at the call's end. Greenlets are used again.

Cancellation: `Task.cancel` asks the future that the task awaits. It is thrown into the greenlet once, at the wait where
it is or at the next one that can be interrupted; repeated ones are held. Into a shielded call nothing is thrown: that
is told, goes on, and CancelledError is raised behind its end.

Before Python 3.15 the garbage collector does not see what is on the stack of a suspended greenlet. So that stack refers
to no task and no future: what is registered with the loop does, and goes with that. A task that is dropped with its
loop, or a coroutine that is closed, finishes its call at once, by waits that block.
"""

from __future__ import annotations

import asyncio
import select
from asyncio import AbstractEventLoop, CancelledError, Future
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import local
from time import monotonic
from typing import Any, Final, TypeVar, TypeVarTuple, cast
from weakref import ref

from txpool import loops
from txpool.aio import threads
from txpool.aio.lock import TaskLock, owner_of_calls
from txpool.aio.missing import getcurrent, greenlet
from txpool.aio.poller import poller_of
from txpool.errors import ProgrammingError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: How many idle greenlets a thread keeps.
_MOST_IDLE: Final = 256

_here = local()


class _Awaited(Future[None]):
    """What a task awaits until its call has ended."""

    def __init__(self, call: Call, loop: AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._call = call
        #: Of the wait. Not on the stack of the greenlet, since it refers to this.
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self, msg: Any = None) -> bool:
        """Called by `Task.cancel`, of which nothing else is heard."""
        if self.done():
            return False
        self._call.cancelled(() if msg is None else (msg,))
        return True


class Call(greenlet):  # type: ignore[misc]
    """A greenlet in which one call after the other runs. As `txpool.loops.TaskCall`."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        """Forget the call that has ended."""
        self.function: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        #: The waits of this call block, since its task or loop is gone.
        self.blocking = False
        #: The arguments of the CancelledError, once the task was cancelled.
        self.held: tuple[Any, ...] | None = None
        #: Called when the task is cancelled, if nothing is thrown into the call then.
        self.told: Callable[[BaseException], object] | None = None
        #: It was thrown, or is not to be.
        self.thrown = False
        #: The number of the wait that it is in; 0 outside of any.
        self._wait = 0
        self._interruptible = False
        self._ready = 0
        self._awaited: Callable[[], _Awaited | None] = _nothing
        self.strict = True
        #: What owns the locks that it takes, if not itself: what several calls are a part of.
        self.owner: object = None

    # -- for the task -------------------------------------------------------------------------------------------

    def begin(self, loop: AbstractEventLoop, function: Callable[[], Any]) -> None:
        """Run it to its end, or to its first wait."""
        poller = poller_of(loop)
        self.loop, self.wakings, self.function = loop, poller.wakings, function
        self.poller = ref(poller)  # which refers to tasks
        del poller
        self.gr_context = getcurrent().gr_context
        self._enter()

    def awaited(self) -> _Awaited:
        """What to await until it has finished; made by its first wait."""
        awaited = self._awaited()
        if awaited is None:
            awaited = _Awaited(self, self.loop)
            self._awaited = ref(awaited)
        return awaited

    def cancelled(self, arguments: tuple[Any, ...]) -> None:
        """Its task is cancelled."""
        if self.held is not None:
            return
        self.held = arguments
        if self.told is not None:
            self.told(CancelledError(*arguments))
        elif not self.thrown:
            # Not at once: whoever cancels may be in a greenlet, too.
            self.loop.call_soon(self._deliver)

    def finish(self) -> None:
        """Finish it at once, by waits that block: nobody awaits it any more."""
        self.blocking = True
        if self.told is None and self.held is None:
            self.held = ()
        self._enter()

    def _deliver(self) -> None:
        if self._wait and self._interruptible and self.held is not None and not self.thrown:
            self._wait = 0
            self._enter()

    def _enter(self) -> None:
        self._back = getcurrent()
        self.switch()

    # -- its own ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while True:
            function, self.function = self.function, None
            try:
                self.result = function()  # type: ignore[misc]
            except BaseException as error:
                self.error = error
            function = None
            self.finished = True
            self._tell()
            self._back.switch()

    def _tell(self) -> None:
        awaited = self._awaited()
        if awaited is not None and not awaited.done():
            with suppress(RuntimeError):  # the loop is closed
                awaited.set_result(None)

    # -- its waits ----------------------------------------------------------------------------------------------

    def wait_for(self, descriptor: int, events: int, timeout: float | None = None) -> int:
        if self.blocking:
            return _block(descriptor, events, timeout)
        number = self._begin_wait()
        try:
            self._watch(descriptor, events, number)
            if timeout is not None:
                self._start_timer(timeout, number)
            self._pause()
        finally:
            if timeout is not None:
                self._stop_timer()
            if not self._ready:
                self._unwatch(descriptor)
        return _block(descriptor, events, timeout) if self.blocking else self._ready & events

    def _watch(self, descriptor: int, events: int, number: int) -> None:
        poller = self.poller()
        if poller is None:  # the loop is closed
            raise RuntimeError("the event loop is closed")
        poller.watch(descriptor, events, self, number, self.awaited())

    def _unwatch(self, descriptor: int) -> None:
        poller = self.poller()
        if poller is not None:
            poller.unwatch(descriptor)

    def steps(self, steps: Generator[Any, Any, T], descriptor: int, interval: float | None = None) -> T:
        try:
            events = next(steps)
            while True:
                events = steps.send(self.wait_for(descriptor, int(events), interval))
        except StopIteration as done:
            result: T = done.value
            return result

    def signal(self) -> Signal:
        return Signal(self)

    def sleep_until(self, signal: Signal, timeout: float | None) -> None:
        """Wait for a signal, or for so many seconds."""
        number = signal.number = self._begin_wait()
        self._hold(timeout, number)
        try:
            if not signal.is_set():
                self._pause()
        finally:
            self._wait = 0
            self._let_go(timeout)

    def in_thread(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        if self.blocking:
            return function(*arguments)
        number = self._begin_wait(interruptible=False)
        told = partial(self.wake_soon, number)
        job = threads.Job(self.owner or self, self.loop, copy_context(), function, arguments, told=told)
        self._hold(None, number)
        try:
            threads.start(job)
            self._pause()
        finally:
            self._let_go(None)
            self._wait = 0
        job.done.acquire()  # which is released, unless nobody awaits this any more
        outcome: T = job.outcome()
        return outcome

    def adopt(self, transaction: loops.HasLocks) -> None:
        transaction.in_loop, transaction.awaits = True, self.strict
        transaction.new_lock = cast(Any, partial(TaskLock, transaction.gtrid, strict=self.strict))

    def _hold(self, timeout: float | None, number: int) -> None:
        """Have the loop hold the task while nothing else of it does: with a timer, that does."""
        if timeout is None:
            poller = self.poller()
            if poller is not None:
                poller.held.add(self.awaited())
        else:
            self._start_timer(timeout, number)

    def _let_go(self, timeout: float | None) -> None:
        if timeout is None:
            poller = self.poller()
            if poller is not None:
                poller.held.discard(self._awaited())
        else:
            self._stop_timer()

    def _start_timer(self, seconds: float, number: int) -> None:
        awaited = self.awaited()
        awaited.timer = self.loop.call_later(seconds, self.wake, number, 0, awaited)

    def _stop_timer(self) -> None:
        awaited = self._awaited()
        if awaited is not None and awaited.timer is not None:
            awaited.timer.cancel()
            awaited.timer = None

    def _begin_wait(self, *, interruptible: bool = True) -> int:
        if interruptible:
            self._require_not_cancelled()
        self._interruptible, self._ready = interruptible, 0
        self._number = self._wait = getattr(self, "_number", 0) + 1
        return self._number

    def _require_not_cancelled(self) -> None:
        if self.held is not None and self.told is None and not self.thrown:
            self.thrown = True
            raise CancelledError(*self.held)

    def _pause(self) -> None:
        """Switch to the loop until the wait is over. Raises CancelledError."""
        try:
            self._back.switch()
        except BaseException:  # GreenletExit: its thread has ended
            self.blocking = True
            raise
        finally:
            self._wait = 0
        if self._interruptible:
            self._require_not_cancelled()

    def wake(self, number: int, ready: int, _: object = None) -> None:
        """Called by the loop, where a timer keeps the task by the last argument."""
        if number and number == self._wait:
            self._wait, self._ready = 0, ready
            self._enter()

    def wake_soon(self, number: int) -> None:
        """The wait of this number is over. From any thread."""
        loop = self.loop
        with suppress(RuntimeError):  # the loop is closed
            if asyncio._get_running_loop() is loop:
                loop.call_soon(self.wake, number, 0)
            else:
                self.wakings.add(loop, self, number)


class Signal:
    """As `txpool.loops.OneShotEvent`."""

    __slots__ = ("_call", "_set", "number")

    def __init__(self, call: Call) -> None:
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
        self._call.wake_soon(self.number)


def _nothing() -> None:
    return None


def _block(descriptor: int, events: int, timeout: float | None) -> int:
    ready = select.poll()
    wanted = (select.POLLIN if events & loops.READ else 0) | (select.POLLOUT if events & loops.WRITE else 0)
    ready.register(descriptor, wanted)
    found = ready.poll(None if timeout is None else timeout * 1000)
    if not found:
        return 0
    event = found[0][1]
    return (events & loops.READ if event & ~select.POLLOUT else 0) | (
        events & loops.WRITE if event & ~select.POLLIN else 0
    )


def current() -> Call | None:
    """The call in which this code runs; None outside of any."""
    here = getcurrent()
    return here if type(here) is Call else None


async def run(  # noqa: PLR0912 - what may come between the call and its task stands together
    function: Callable[[], T],
    *,
    told: Callable[[BaseException], object] | None = None,
    dispose: Callable[[T], object] | None = None,
    strict: bool = True,
    owner: object = None,
) -> T:
    """Call the synchronous function in a greenlet, and return what it returns.

    With `told`, it is shielded: a cancellation calls that with a CancelledError, and the function goes on. `dispose`
    is called with a result that nobody gets, since the task was cancelled. `strict` is of the transactions that it
    begins: a synchronous call in them would be refused. `owner` is what owns the locks that it takes, if not itself.
    """
    loop = asyncio._get_running_loop()
    if loop is None:
        raise ProgrammingError(
            "this is awaited in no event loop of asyncio's: under trio, call the synchronous functions by "
            "trio.to_thread.run_sync(). Nothing was done"
        )
    if not loops.used:
        _use()
    try:
        idle: list[Call] = _here.idle
    except AttributeError:
        idle = _here.idle = []
    call = idle.pop() if idle else Call()
    call.told, call.strict, call.owner = told, strict, owner
    call.begin(loop, function)
    try:
        if not call.finished:
            await call.awaited()
    except BaseException as error:
        # The task was cancelled behind its end; or the coroutine is closed, by its loop's end or the program.
        if not call.finished:
            call.finish()
        elif call.held is None:
            call.held = error.args
        if call.error is None and dispose is not None:
            dispose(call.result)
        if call.error is not None and not isinstance(call.error, CancelledError):
            raise error from call.error
        raise
    finally:
        held, failure, result = call.held, call.error, call.result
        if call.finished:
            call.gr_context = None
            call.clear()
            if len(idle) < _MOST_IDLE:
                idle.append(call)
        del call
    if held is not None and not isinstance(failure, CancelledError):
        if failure is None and dispose is not None:
            dispose(result)
        raise CancelledError(*held) from failure
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
    return result  # type: ignore[no-any-return]


def _use() -> None:
    owner_of_calls.append(current)
    loops.use(current, threads.loop_here)
