"""The bridge alone: what wakes a call, and when."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from typing import Any

import pytest

pytest.importorskip("greenlet")

from txpool.aio.bridge import current, run
from txpool.loops import READ, WRITE


def call() -> Any:
    found = current()
    assert found is not None
    return found


def test_a_signal_that_comes_before_its_wait_wakes_nobody_later() -> None:
    def early() -> None:
        signal = call().signal()
        released = threading.Thread(target=signal.release)
        released.start()
        released.join()
        assert signal.acquire()

    async def main() -> None:
        for _ in range(3):
            await run(early)
            await asyncio.sleep(0)
            assert await run(lambda: 1) == 1

    asyncio.run(main())


def test_a_descriptor_whose_number_is_anothers_by_now() -> None:
    """It was closed by another thread while it was registered."""

    def wait(descriptor: int) -> int:
        return int(call().wait_for(descriptor, READ, 60))

    async def ready(mine: socket.socket, other: socket.socket) -> None:
        asyncio.get_running_loop().call_later(0.01, other.send, b"x")
        assert await run(lambda: wait(mine.fileno())) == READ

    async def main() -> None:
        numbers = set()
        for _ in range(3):
            mine, other = socket.socketpair()
            numbers.add(mine.fileno())
            await ready(mine, other)
            await asyncio.to_thread(mine.close)
            other.close()
        assert len(numbers) == 1
        mine, other = socket.socketpair()  # another's, which the loop itself reads
        assert mine.fileno() in numbers
        mine.setblocking(False)
        other.send(b"hello")
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(mine, 5), 60) == b"hello"
        mine.close()
        other.close()

    asyncio.run(main())


def test_what_is_ready_while_nobody_waits_does_not_keep_the_loop_busy() -> None:
    async def main() -> None:
        mine, other = socket.socketpair()
        with mine, other:
            other.send(b"x")
            assert await run(lambda: call().wait_for(mine.fileno(), READ)) == READ
            loop: Any = asyncio.get_running_loop()
            turns = 0
            selecting = loop._selector.select

            def select(timeout: float | None) -> Any:
                nonlocal turns
                turns += 1
                return selecting(timeout)

            loop._selector.select = select
            await asyncio.sleep(0.2)  # the socket is readable all the time
            loop._selector.select = selecting
            assert turns < 10

    asyncio.run(main())


def test_what_a_wait_tells() -> None:
    async def main() -> None:
        mine, other = socket.socketpair()
        with mine:
            assert await run(lambda: call().wait_for(mine.fileno(), READ, 0.01)) == 0
            assert await run(lambda: call().wait_for(mine.fileno(), READ | WRITE)) == WRITE
            other.close()
            assert await run(lambda: call().wait_for(mine.fileno(), READ)) == READ
            assert await run(lambda: call().wait_for(mine.fileno(), READ | WRITE)) == READ | WRITE

    asyncio.run(main())


def test_many_wait_at_once() -> None:
    """More than the loop wakes in one turn."""

    async def wait(mine: socket.socket) -> int:
        return await run(lambda: int(call().wait_for(mine.fileno(), READ)))

    async def main() -> None:
        pairs = [socket.socketpair() for _ in range(50)]
        waits = [asyncio.ensure_future(wait(mine)) for mine, _ in pairs]
        await asyncio.sleep(0)
        for _, other in pairs:
            other.send(b"x")
        assert await asyncio.wait_for(asyncio.gather(*waits), 60) == [READ] * 50
        for pair in pairs:
            for each in pair:
                each.close()

    asyncio.run(main())


def test_a_loop_that_is_closed_during_a_wait_with_a_time() -> None:
    """The call is finished once the collector has found its task."""
    ended: list[bool] = []

    def wait() -> None:
        try:
            call().signal().acquire(600)
        finally:
            ended.append(True)

    async def work() -> None:
        await run(wait)

    loop = asyncio.new_event_loop()
    task = loop.create_task(work())
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    loop.close()
    gc.collect()
    assert ended == [True]


def test_all_times_of_a_loop_have_one_timer() -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        made = 0
        calling = loop.call_at

        def call_at(*args: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            return calling(*args, **options)

        loop.call_at = call_at
        for _ in range(50):
            woken = [call_soon_released(loop) for _ in range(4)]
            assert await asyncio.gather(*woken) == [True] * 4
        assert made < 5
        loop.call_at = calling
        assert await run(lambda: call().signal().acquire(0.01)) is False
        late = [run(lambda seconds=seconds: call().signal().acquire(seconds)) for seconds in (0.03, 0.01, 0.02)]  # type: ignore[misc]
        assert await asyncio.gather(*late) == [False] * 3

    asyncio.run(main())


async def call_soon_released(loop: asyncio.AbstractEventLoop) -> bool:
    def wait() -> bool:
        signal = call().signal()
        loop.call_soon(signal.release)
        return bool(signal.acquire(60))

    return await run(wait)
