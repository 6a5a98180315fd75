"""Workers: one thread for each datasource, in which recovery asks it, so that one that hangs holds up no other.

Only waits run in parallel. The pass itself stays in its own thread: it waits at a barrier until every datasource has
answered or its time is over, and then goes on to the next step. What comes later is discarded.

A worker that has not come back is *stuck*. It is asked nothing meanwhile, so that a datasource has at most one stuck
thread, however many passes there are. What was queued behind the stuck call is never executed. The drivers know the
time as well (`txpool.resources.deadlines.step_until`), and close their connection when it is over: that is how most
workers come back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

from txpool.errors import OperationalError
from txpool.locks import Lock, RLock
from txpool.resources.deadlines import step_until

T = TypeVar("T")

#: Seconds that a call has beyond its time, so that the driver's own error comes first: it closes the connection.
_GRACE = 1.0
#: Seconds that each call has at most once recovery is to end.
_ENDING = 1.0
#: Seconds for which an idle thread waits for another call.
_IDLE = 5.0


class NoAnswer(OperationalError):
    """A datasource has not answered in time. What it was asked may still be executed."""


class Workers:
    """The workers of one recovery manager. Thread-safe. `timeout` is what each step of a datasource may take, in
    seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._lock = Lock()
        self._workers: dict[str, _Worker] = {}
        self._stopping = False

    @property
    def stuck(self) -> list[str]:
        """The datasources whose workers have not come back yet."""
        with self._lock:
            return [name for name, worker in self._workers.items() if worker.is_stuck()]

    def start(self, name: str, act: Callable[[], T]) -> WorkerCall[T]:
        """Execute in the datasource's worker, after what was started there before; returns at once."""
        with self._lock:
            worker = self._workers.get(name)
            if worker is None:
                worker = self._workers[name] = _Worker(name)
            return worker.start(self._call(worker, act))

    def tidy(self, name: str, act: Callable[[], object]) -> None:
        """Close something in the worker that has used it: now, or when the worker comes back if it is stuck."""
        with self._lock:
            worker = self._workers.get(name)
        if worker is not None:
            worker.tidy(self._call(worker, act, tidies=True))

    def hurry(self) -> None:
        """Recovery is to end: let no call be waited for much longer, until `resume`."""
        with self._lock:
            self._stopping = True
            for worker in self._workers.values():
                worker.hurry()

    def resume(self) -> None:
        """Let calls have their whole time again."""
        with self._lock:
            self._stopping = False

    def rest(self) -> None:
        """Let idle threads end."""
        with self._lock:
            for name, worker in list(self._workers.items()):
                if worker.rest():
                    del self._workers[name]

    def _call(self, worker: _Worker, act: Callable[[], T], *, tidies: bool = False) -> WorkerCall[T]:
        call = WorkerCall(worker, act, monotonic() + self.timeout, self.timeout, tidies=tidies)
        if self._stopping:
            call.hurry()
        return call


class WorkerCall(Generic[T]):
    """One call in a worker. Its fields are guarded by the worker's condition."""

    def __init__(
        self, worker: _Worker, act: Callable[[], T], until: float, timeout: float, *, tidies: bool = False
    ) -> None:
        self._worker = worker
        self.act = act
        self.until = until
        self._words = f"no answer within {timeout:g} s (recovery.step-timeout)"
        #: It only closes something, and is executed also behind a stuck call.
        self.tidies = tidies
        self.result: T | None = None
        self.error: BaseException | None = None
        self.done = False
        #: Nobody waits for it any more.
        self.abandoned = False
        #: Whether it has ended only when its time was over.
        self.overdue = False

    def wait(self) -> T:
        """Its result, or its error. NoAnswer if neither comes in time: what comes later is discarded."""
        self._worker.wait(self)
        if self.error is None:
            return self.result  # type: ignore[return-value]
        if self.overdue and isinstance(self.error, Exception) and not isinstance(self.error, NoAnswer):
            raise NoAnswer(self.words()) from self.error
        raise self.error

    def execute(self) -> tuple[T | None, BaseException | None]:
        """Called in the worker's thread: its result, or its error."""
        try:
            with step_until(self.until):
                return self.act(), None
        except BaseException as error:
            return None, error

    def fail(self, words: str) -> None:
        """End it without an answer."""
        self.done, self.overdue, self.error = True, True, NoAnswer(words)

    def hurry(self) -> None:
        """Let it end soon, since recovery is to end."""
        soon = monotonic() + _ENDING
        if soon < self.until:
            self.until, self._words = soon, f"no answer within {_ENDING:g} s, and recovery was to end"

    def words(self) -> str:
        """Why it has no answer."""
        return self._words


class _Worker:
    """The calls of one datasource, executed one after the other in a thread that ends when it is idle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = RLock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[WorkerCall[object]] = deque()
        self._running: WorkerCall[object] | None = None
        self._stuck_since: float | None = None
        self._thread: threading.Thread | None = None
        self._resting = False

    def start(self, call: WorkerCall[T]) -> WorkerCall[T]:
        with self._lock:
            if self._running is not None and self._running.abandoned:
                call.fail(self._stuck())
            else:
                self._append(call)
        return call

    def tidy(self, call: WorkerCall[object]) -> None:
        with self._lock:
            stuck = self._running is not None and self._running.abandoned
            self._append(call)
        if not stuck:
            self.wait(call)

    def wait(self, call: WorkerCall[T]) -> None:
        """Return once the call is done; otherwise abandon it when its time is over."""
        try:
            with self._lock:
                while not call.done:
                    left = call.until + _GRACE - monotonic()
                    if left <= 0:
                        self._abandon(call)
                        return
                    self._changed.wait(left)
        except BaseException:  # an interrupt
            with self._lock:
                self._abandon(call)
            raise

    def hurry(self) -> None:
        with self._lock:
            for call in (*self._queue, *([self._running] if self._running else [])):
                call.hurry()
            self._changed.notify_all()

    def is_stuck(self) -> bool:
        with self._lock:
            return self._running is not None and self._running.abandoned

    def rest(self) -> bool:
        """Let the thread end once it has nothing to do; whether nothing is left of it."""
        with self._lock:
            self._resting = True
            self._changed.notify_all()
            return self._running is None and not self._queue

    def _append(self, call: WorkerCall[T]) -> None:
        self._queue.append(call)  # type: ignore[arg-type]
        self._resting = False
        if self._thread is None or not self._thread.is_alive():  # a fork takes no thread along
            self._running = None
            self._thread = threading.Thread(target=self._run, name=f"txpool-recovery-{self._name}", daemon=True)
            self._thread.start()
        else:
            self._changed.notify_all()

    def _abandon(self, call: WorkerCall[T]) -> None:
        if call.done:
            return
        call.abandoned = True
        if call is self._running:
            self._stuck_since = call.until
            for queued in self._queue:  # never executed
                if not queued.tidies:
                    queued.fail(call.words())
            self._queue = deque(queued for queued in self._queue if queued.tidies)
        elif not call.tidies:
            self._queue.remove(call)  # type: ignore[arg-type]
        call.fail(call.words())

    def _stuck(self) -> str:
        seconds = monotonic() - (self._stuck_since or monotonic())
        return (
            "no answer to an earlier question, which recovery has stopped waiting for "
            f"{seconds:.0f} s ago; it is asked again once that has ended"
        )

    def _run(self) -> None:
        while (call := self._next()) is not None:
            result, error = call.execute()
            with self._lock:
                self._running = None
                if not call.abandoned:
                    call.result, call.error, call.done = result, error, True
                    call.overdue = monotonic() >= call.until
                self._changed.notify_all()

    def _next(self) -> WorkerCall[object] | None:
        with self._lock:
            while not self._queue:
                if self._resting or not self._changed.wait(_IDLE):
                    if self._queue:
                        break
                    self._thread = None
                    return None
            self._running = self._queue.popleft()
            return self._running
