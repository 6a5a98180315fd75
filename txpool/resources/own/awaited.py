"""What a method of a user's own returns: a coroutine runs to its end before the caller goes on.

In a thread that works for a task it runs in that task's event loop. Elsewhere, as in recovery, in one of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from txpool import loops
from txpool.errors import OperationalError
from txpool.loops import Cancellation
from txpool.resources.deadlines import NO_DEADLINES, Deadlines, ReplyTimeout

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

#: Seconds after which a thread looks whether the loop still runs.
_LOOK_AGAIN = 1.0


def finished(result: Any, until: float | None = None, cancellation: Cancellation | None = None) -> Any:
    """The result itself; of an awaitable, what it returns or raises.

    At `until`, by the monotonic clock, an awaitable is cancelled, and is waited for no longer. A `cancellation` cancels
    it, too; then so does that of the task for which this thread works. Errors: ReplyTimeout, and OperationalError if it
    was cancelled.
    """
    if not inspect.isawaitable(result):
        return result
    running = _Running(result, until)
    serving = loops.serving()
    if cancellation is not None:
        cancellation.call(running.cancel)
        if serving is not None:
            serving.cancellation.call(running.cancel)
    loop = None if serving is None else serving.loop
    return running.in_new_loop() if loop is None or not loop.is_running() else running.in_loop(loop)


class Waits:
    """How a transaction waits for the methods of one resource. `cancel` is for any thread."""

    __slots__ = ("_cancellation", "_deadlines", "cancel")

    def __init__(self, deadlines: Deadlines = NO_DEADLINES) -> None:
        self._deadlines = deadlines
        self._cancellation = Cancellation()
        #: Its timeout is over: cancel what is awaited before the decision, now or later.
        self.cancel = self._cancellation.come

    def before_decision(self, result: Any) -> Any:
        """As `finished`, for what a cancellation ends: it is a vote to roll back."""
        return finished(result, self._deadlines.before_decision(), self._cancellation)

    def until(self) -> float | None:
        """Until when a commit or rollback that begins now is waited for. No cancellation ends it."""
        return self._deadlines.after_decision()


class _Running:
    """An awaitable that runs, or will, in a task of its own."""

    def __init__(self, result: Awaitable[Any], until: float | None) -> None:
        self._result = result
        self._until = until
        self._loop: AbstractEventLoop | None = None
        self._task: Task[Any] | None = None
        self._asked = self._told = False

    def cancel(self) -> None:
        """Cancel it, once. From any thread."""
        self._asked = True  # before the loop is looked at, as the loop's own thread does the reverse
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if not self._told and self._task is not None:
            self._told = True
            self._task.cancel()

    async def _run(self) -> Any:
        import asyncio

        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        if self._asked:
            self._tell()
        timer = None
        if self._until is not None:
            timer = self._loop.call_later(max(self._until - monotonic(), 0), self._task.cancel)  # type: ignore[union-attr]
        try:
            return await self._result
        finally:
            if timer is not None:
                timer.cancel()

    def in_loop(self, loop: AbstractEventLoop) -> Any:
        """Run it in this loop, which another thread runs."""
        import asyncio
        from concurrent.futures import CancelledError

        running = asyncio.run_coroutine_threadsafe(self._run(), loop)
        while True:
            try:
                return running.result(_LOOK_AGAIN if self._until is None else min(_LOOK_AGAIN, self._left()))
            except CancelledError:
                raise self._was_cancelled() from None
            except TimeoutError:
                if running.done():
                    return running.result()
                if not loop.is_running():
                    running.cancel()
                    raise OperationalError("the event loop has stopped before it had an answer") from None
                if self._until is not None and not self._left():
                    running.cancel()
                    raise self._was_cancelled() from None

    def in_new_loop(self) -> Any:
        """Run it in a loop of its own; in a thread of its own, if one runs here."""
        import asyncio

        if asyncio._get_running_loop() is None:
            return self._alone()
        outcome: list[Any] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(self._alone())
            except BaseException as error:
                failure.append(error)

        thread = Thread(target=run, name="txpool-await")
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]

    def _alone(self) -> Any:
        import asyncio

        try:
            return asyncio.run(self._run())
        except asyncio.CancelledError:
            raise self._was_cancelled() from None

    def _left(self) -> float:
        return max((self._until or 0) - monotonic(), 0)

    def _was_cancelled(self) -> OperationalError:
        if self._until is not None and not self._left():
            return ReplyTimeout("it had no answer within the time that the transaction waits for one")
        return OperationalError("it was cancelled in the event loop before it had an answer")
