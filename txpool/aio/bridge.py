"""The bridge: a task's call runs synchronous code in a greenlet, and where that waits the loop goes on.

The greenlet runs in the loop's thread, and in the task's own context. What it is and how it waits is in
`txpool.aio.call`; here a task makes a call, and gets its result. The task itself is woken once, at the call's end.
Greenlets are used again.

Cancellation: `Task.cancel` asks the future that the task awaits. It is thrown into the greenlet once, at the wait where
it is or at the next one that can be interrupted; repeated ones are held. Into a shielded call nothing is thrown: that
is told, goes on, and CancelledError is raised behind its end. A task that is dropped with its loop, or a coroutine that
is closed, finishes its call at once, by waits that block.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Callable
from threading import local
from typing import Final, TypeVar

from txpool import loops
from txpool.aio import threads
from txpool.aio.call import Call, getcurrent
from txpool.aio.lock import owner_of_calls
from txpool.errors import ProgrammingError

T = TypeVar("T")

#: How many idle greenlets a thread keeps.
_MOST_IDLE: Final = 256

_here = local()


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
    call.begin(loop, function, told, strict, owner)
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
    loops.use(current, threads.job_here)
