"""Threads for what only blocks. Their number has no bound of its own: each works on a connection of a bounded pool.

With a bound they would deadlock: all of them waiting for a row whose holder needs a thread to commit.
"""

from __future__ import annotations

import _thread
import os
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextvars import Context
from queue import Empty, SimpleQueue
from threading import Thread, local
from typing import Any, Final

from txpool.loops import Cancellation

#: Seconds after which an idle thread ends.
_IDLE: Final = 10.0

#: In such a thread: the call for which it works. It owns what the call owns.
working_for = local()


def job_here() -> Job | None:
    """What this thread does for a task; None in any other thread."""
    return getattr(working_for, "job", None)


class Job:
    """A function that a thread calls, and what has come of it."""

    __slots__ = (
        "_arguments",
        "_call",
        "_context",
        "_function",
        "_told",
        "cancellation",
        "done",
        "error",
        "loop",
        "result",
    )

    def __init__(
        self,
        call: object,
        loop: AbstractEventLoop,
        context: Context,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        told: Callable[[], object],
    ) -> None:
        self._call, self._context, self._function, self._arguments = call, context, function, arguments
        self.loop = loop
        #: Of the call's task.
        self.cancellation = Cancellation()
        self._told = told
        self.result: Any = None
        self.error: BaseException | None = None
        #: Released once it has been called.
        self.done = _thread.allocate_lock()
        self.done.acquire()

    def run(self) -> None:
        working_for.call, working_for.job = self._call, self
        try:
            self.result = self._context.run(self._function, *self._arguments)
        except BaseException as error:
            self.error = error
        finally:
            working_for.job = self.loop = None  # type: ignore[assignment]
            working_for.call = self._call = self._context = self._function = self._arguments = None  # type: ignore[assignment]
            self.done.release()
            self._told()

    def outcome(self) -> Any:
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self.result


_idle: list[SimpleQueue[Job]] = []


def start(job: Job) -> None:
    """Have a thread run it."""
    try:
        _idle.pop().put(job)
    except IndexError:
        jobs: SimpleQueue[Job] = SimpleQueue()
        jobs.put(job)
        # An empty context: the thread must not inherit the transaction in which it happened to start.
        Thread(target=Context().run, args=(_work, jobs), name="txpool-aio", daemon=True).start()


def _work(jobs: SimpleQueue[Job]) -> None:
    job: Job | None = jobs.get()
    while True:
        if job is not None:
            job.run()
        job = None
        _idle.append(jobs)
        try:
            job = jobs.get(timeout=_IDLE)
        except Empty:
            try:
                _idle.remove(jobs)
            except ValueError:  # a job is on its way
                job = jobs.get()
                continue
            return


def _after_fork_in_child() -> None:
    _idle.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
