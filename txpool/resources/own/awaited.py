"""What a method of a user's own returns: a coroutine runs to its end before the caller goes on.

In a thread that works for a task it runs in that task's event loop. Elsewhere, as in recovery, in one of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from threading import Thread
from typing import Any

from txpool import loops
from txpool.errors import OperationalError

#: Seconds after which a thread looks whether the loop still runs.
_LOOK_AGAIN = 1.0


def finished(result: Any) -> Any:
    """The result itself; of an awaitable, what it returns or raises."""
    if not inspect.isawaitable(result):
        return result
    import asyncio  # which what waits for nothing does not need
    from concurrent.futures import CancelledError

    loop = loops.serving()
    if loop is None or not loop.is_running():
        return _in_new_loop(result)
    running = asyncio.run_coroutine_threadsafe(_of(result), loop)
    while True:
        try:
            return running.result(_LOOK_AGAIN)
        except CancelledError:
            raise OperationalError("it was cancelled in the event loop before it had an answer") from None
        except TimeoutError:
            if running.done():
                return running.result()
            if not loop.is_running():
                running.cancel()
                raise OperationalError("the event loop has stopped before it had an answer") from None


async def _of(result: Awaitable[Any]) -> Any:
    return await result


def _in_new_loop(result: Awaitable[Any]) -> Any:
    import asyncio

    if asyncio._get_running_loop() is None:
        return asyncio.run(_of(result))
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(_of(result)))
        except BaseException as error:
            failure.append(error)

    thread = Thread(target=run, name="txpool-await")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
