"""One call of a task: a greenlet in which synchronous code runs, and which switches to the loop at each of its waits.

A wait registers with the loop, whose callback switches straight back. Before Python 3.15 the garbage collector does not
see what is on the stack of a suspended greenlet. So that stack refers to no task and no future: what is registered with
the loop does, and goes with that.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError, Future
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar, TypeVarTuple, cast
from weakref import ref

from txpool import loops
from txpool.aio import threads
from txpool.aio.lock import Signal, TaskLock, abandon
from txpool.aio.poller import Poller, Wakings, block, poller_of
from txpool.errors import ConfigurationError
from txpool.loops import WRITE
from txpool.resources.deadlines import WaitForOthers

try:
    import greenlet as package
except ImportError as missing:
    raise ConfigurationError(
        "txpool in an event loop needs greenlet, which is not installed, and nothing was done: "
        "pip install 'txpool[asyncio]'"
    ) from missing

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Seconds for which a call may hold the loop while what it writes to is ready at once, as a pipeline's socket is.
_WRITES_FOR: Final = 0.001

# Of any type, so that the types are the same where it is not installed.
greenlet: Any = package.greenlet
getcurrent: Any = package.getcurrent


class _Awaited(Future[None]):
    """What a task awaits until its call has ended."""

    def __init__(self, call: Call, loop: AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._call = call

    def cancel(self, msg: Any = None) -> bool:
        """Called by `Task.cancel`, of which nothing else is heard."""
        if self.done():
            return False
        self._call.cancelled(() if msg is None else (msg,))
        return True


class Call(greenlet):  # type: ignore[misc]
    """A greenlet in which one call after the other runs. As `txpool.loops.TaskCall`."""

    #: Of the loop; it refers to no task.
    wakings: Wakings

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        #: The wait behind which it writes without another, and since when.
        self._writes_behind, self._writes_since = -1, 0.0
        self._back: Any = None
        #: Of the last call, until there is another.
        self.loop: Any = None
        self.poller: Callable[[], Poller | None] = _nothing
        self._task: Callable[[], asyncio.Task[Any] | None] = _nothing
        self.function: Callable[[], Any] | None = None
        self.told: Callable[[BaseException], object] | None = None
        self.owner: object = None
        self.result: Any = None
        self.error: BaseException | None = None
        #: The waits of this call block, since its task or loop is gone.
        self.finished = self.blocking = False
        #: The arguments of the CancelledError, once the task was cancelled.
        self.held: tuple[Any, ...] | None = None
        #: It was thrown, or is not to be.
        self.thrown = False
        #: The number of the wait that it is in; 0 outside of any.
        self._wait = self._ready = 0
        self._interruptible = False
        #: None until its first wait.
        self._awaited: Callable[[], _Awaited | None] | None = None
        #: What a thread does for it meanwhile.
        self._job: threads.Job | None = None
        #: The locks that it has asked for.
        self.locks: dict[TaskLock, None] = {}

    def clear(self) -> None:
        """Forget the call that has ended. What the next one sets at its beginning stays."""
        self.gr_context = self.result = self.error = self.told = self.owner = self._awaited = self._job = None
        self._wait = 0
        if self.locks:
            self.locks = {}
        if self.blocking or self.held is not None:
            self.blocking, self.held, self.thrown = False, None, False

    # -- for the task -------------------------------------------------------------------------------------------

    def begin(
        self,
        loop: AbstractEventLoop,
        function: Callable[[], Any],
        told: Callable[[BaseException], object] | None,
        strict: bool,
        owner: object,
    ) -> None:
        """Run it to its end, or to its first wait.

        `told` is called when the task is cancelled: then nothing is thrown into the call. `owner` owns the locks that
        it takes, if not itself: what several calls are a part of.
        """
        poller = self.poller() if loop is self.loop else None
        if poller is None:
            poller = poller_of(loop)
            self.loop, self.wakings = loop, poller.wakings
            self.poller = ref(poller)  # which refers to tasks
        self.function, self.told, self.strict, self.owner, self.finished = function, told, strict, owner, False
        del poller
        self._back = here = getcurrent()
        self.gr_context = here.gr_context
        task = asyncio.current_task(loop)
        self._task = _nothing if task is None else ref(task)
        del task
        self.switch()

    def awaited(self) -> _Awaited:
        """What to await until it has finished; made by its first wait."""
        awaited = None if self._awaited is None else self._awaited()
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
        if self._job is not None:
            self._job.cancellation.come()

    def finish(self) -> None:
        """Finish it at once, by waits that block: nobody awaits it any more."""
        self.blocking = True
        if self.told is None and self.held is None:
            self.held = ()
        self._enter()

    def go_on_blocking(self) -> None:
        """If it is suspended, go on to its end at once, by waits that block: another call that blocks waits for it."""
        if self._wait and not self.blocking:
            self.blocking = True
            self._enter()

    def _deliver(self) -> None:
        if self._wait and self._interruptible and self.held is not None and not self.thrown:
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
            if self.locks:
                abandon(self.locks, self)
            self.finished = True
            if self._awaited is not None:
                self._tell(self._awaited())
            self._back.switch()

    def _tell(self, awaited: _Awaited | None) -> None:
        if awaited is not None and not awaited.done():
            try:  # noqa: SIM105 - `suppress` costs several calls for each
                awaited.set_result(None)
            except RuntimeError:  # the loop is closed
                pass

    @property
    def task_name(self) -> str:
        task = self._task()
        return "" if task is None else task.get_name()

    # -- its waits ----------------------------------------------------------------------------------------------

    def wait_for(self, descriptor: int, events: int, timeout: float | None = None) -> int:
        if self.blocking:
            return block(descriptor, events, timeout)
        if events & WRITE and (ready := self._ready_at_once(descriptor, events)):
            return ready
        number = self._begin_wait()
        try:
            self._watch(descriptor, events, number, timeout)
            self._pause()
        finally:
            if timeout is not None or not self._ready:
                self._unwatch(descriptor)
        return block(descriptor, events, timeout) if self.blocking else self._ready & events

    def _ready_at_once(self, descriptor: int, events: int) -> int:
        """For what it is ready, unless the loop must go on: a turn of the loop for each write costs more than that."""
        self._require_not_cancelled()
        now = monotonic()
        if self._writes_behind != self._number:
            self._writes_behind, self._writes_since = self._number, now
        return block(descriptor, events, 0) if now - self._writes_since < _WRITES_FOR else 0

    def _watch(self, descriptor: int, events: int, number: int, timeout: float | None) -> None:
        poller = self.poller()
        if poller is None:
            raise RuntimeError("the event loop is closed")
        awaited = self.awaited()
        poller.watch(descriptor, events, self, number, awaited)
        if timeout is not None:
            poller.wake_after(self.loop, timeout, self, number, awaited)

    def _unwatch(self, descriptor: int) -> None:
        poller = self.poller()
        if poller is not None:
            if not self._ready:
                poller.unwatch(descriptor)
            poller.forget(self)

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
        try:
            self._hold(timeout, number)
            if not signal.is_set():
                self._pause()
        finally:
            self._wait = 0
            self._stop_keeping()

    def in_thread(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        if self.blocking:
            return function(*arguments)
        number = self._begin_wait(interruptible=False)
        told = partial(self.wake_soon, number)
        job = threads.Job(self.owner or self, self.loop, copy_context(), function, arguments, told=told)
        if self.held is not None:
            job.cancellation.come()
        self._job = job
        try:
            self._hold(None, number)
            threads.start(job)
            self._pause()
        finally:
            self._job = None
            self._stop_keeping()
            self._wait = 0
        job.done.acquire()  # which is released, unless nobody awaits this any more
        outcome: T = job.outcome()
        return outcome

    def after_turn(self, function: Callable[[], object]) -> None:
        if not self.blocking:
            with suppress(RuntimeError):  # the loop is closed
                self.wakings.call_after_turn(self.loop, function)
                return
        function()

    def adopt(self, transaction: loops.HasLocks) -> None:
        transaction.in_loop, transaction.awaits = True, self.strict
        left = WaitForOthers(cast(Any, transaction))
        transaction.new_lock = cast(Any, partial(TaskLock, transaction.gtrid, left, strict=self.strict))

    def _hold(self, timeout: float | None, number: int) -> None:
        """Have the loop hold the task, and wake it after so many seconds."""
        poller = self.poller()
        if poller is not None:
            poller.wake_after(self.loop, timeout, self, number, self.awaited())

    def _stop_keeping(self) -> None:
        poller = self.poller()
        if poller is not None:
            poller.forget(self)

    def _begin_wait(self, *, interruptible: bool = True) -> int:
        if interruptible and self.held is not None:
            self._require_not_cancelled()
        self._interruptible, self._ready = interruptible, 0
        self._number = self._wait = self._number + 1
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
        if self.held is not None and self._interruptible:
            self._require_not_cancelled()

    def wake(self, number: int, ready: int) -> None:
        """Called by the loop; again, if an interrupt comes before it has switched."""
        if number and number == self._wait:
            self._ready = ready
            self._back = getcurrent()
            self.switch()

    def wake_soon(self, number: int) -> None:
        """The wait of this number is over. From any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self.wakings.add(self.loop, self, number)


def _nothing() -> None:
    return None
