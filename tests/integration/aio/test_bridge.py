"""The bridge alone: what wakes a call, and when."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("greenlet")

import txpool
from tests.support.interrupts import interrupted_somewhere
from tests.support.waiting import until
from txpool.aio.bridge import current, run
from txpool.aio.call import Call
from txpool.aio.poller import _AT_LEAST, _AT_ONCE, _TURN, Poller, Turn, Wakings
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


def test_a_wait_that_has_ended_wakes_no_other_one_by_its_number() -> None:
    """The kernel knows a descriptor that was closed, if a forked child has it."""

    async def main() -> None:
        mine, other = socket.socketpair()
        number, childs = mine.fileno(), mine.dup()
        assert await run(lambda: call().wait_for(number, READ, 0.01)) == 0
        mine.close()
        another, far = socket.socketpair()
        with another, far, childs, other:
            assert another.fileno() == number
            other.send(b"x")
            assert await run(lambda: call().wait_for(number, READ, 0.05)) == 0

    asyncio.run(main())


def test_what_is_ready_while_nobody_waits_does_not_keep_the_loop_busy() -> None:
    async def main() -> None:
        mine, other = socket.socketpair()
        with mine, other:
            other.send(b"x")
            assert await run(lambda: call().wait_for(mine.fileno(), READ)) == READ
            loop: Any = asyncio.get_running_loop()
            assert loop._selector.select(0) == []  # the socket is readable all the time

    asyncio.run(main())


@pytest.mark.parametrize(("seconds", "turns"), [(0.0, 0), (1.0, 50)], ids=["soon", "late"])
def test_what_can_be_written_at_once_takes_no_turn_of_the_loop_for_a_while(
    monkeypatch: pytest.MonkeyPatch, seconds: float, turns: int
) -> None:
    """In a pipeline each row is written by itself; so much of it may hold the loop as takes a millisecond."""
    clock = itertools.count(0.0, seconds)
    paused: Counter[str] = Counter()
    pause = Call._pause

    def counting(self: Call) -> None:
        paused["times"] += 1
        pause(self)

    def write(descriptor: int) -> None:
        for _ in range(100):
            assert call().wait_for(descriptor, READ | WRITE) & WRITE

    async def main() -> None:
        mine, other = socket.socketpair()
        with mine, other:
            monkeypatch.setattr("txpool.aio.call.monotonic", lambda: next(clock))
            monkeypatch.setattr(Call, "_pause", counting)
            await run(lambda: write(mine.fileno()))
            assert paused["times"] == turns

    asyncio.run(main())


def test_what_can_be_written_at_once_is_not_if_the_task_is_cancelled() -> None:
    async def main() -> None:
        mine, other = socket.socketpair()

        def write() -> None:
            task.cancel()
            call().wait_for(mine.fileno(), WRITE)

        with mine, other:
            task = asyncio.ensure_future(run(write))
            await asyncio.wait([task])
            assert task.cancelled()

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


def in_thread(release: Callable[[], None]) -> None:
    released = threading.Thread(target=release)
    released.start()
    released.join()


def in_loop(release: Callable[[], None]) -> None:
    release()


@pytest.mark.parametrize("at_first", [50, 20], ids=["all at once", "more in each turn"])
@pytest.mark.parametrize("where", [in_thread, in_loop])
def test_many_that_are_woken_let_the_loop_turn_in_between(
    where: Callable[[Callable[[], None]], None], at_first: int
) -> None:
    """As by a flush of the log, which all its tasks have waited for, or by tasks that give back connections."""
    turns: list[int] = []
    woken: list[int] = []

    def wait(signals: list[Any]) -> None:
        signals.append(call().signal())
        assert signals[-1].acquire()
        woken.append(len(turns))

    async def main() -> None:
        signals: list[Any] = []
        loop = asyncio.get_running_loop()

        def turn() -> None:
            turns.append(len(turns))
            if waiting:
                where(waiting.pop().release)
            if len(woken) < 50:
                loop.call_soon(turn)

        waits = [asyncio.ensure_future(run(lambda: wait(signals))) for _ in range(50)]
        while len(signals) < 50:
            await asyncio.sleep(0)
        waiting = signals[at_first:]
        turn()
        where(lambda: [each.release() for each in signals[:at_first]])  # type: ignore[func-returns-value]
        await asyncio.wait_for(asyncio.gather(*waits), 60)

    asyncio.run(main())
    assert max(woken.count(each) for each in woken) <= _AT_ONCE


def hold() -> None:
    """Take longer than a turn of the loop may."""
    time.sleep(2 * _TURN)


def nothing() -> None:
    pass


def went_on(
    count: int,
    *,
    call_does: Callable[[], None] = nothing,
    task_does: Callable[[], None] = nothing,
    others_do: Callable[[], None] = nothing,
) -> Counter[int]:
    """By the loop's turn, how many went on of so many calls whose descriptors are ready at once.

    What each does behind that, and its task behind the call, and what else the loop does in each turn.
    """
    found: Counter[int] = Counter()
    turn = 0

    def wait(mine: socket.socket) -> None:
        call().wait_for(mine.fileno(), READ, 600)
        found[turn] += 1
        call_does()

    async def work(mine: socket.socket) -> None:
        await run(lambda: wait(mine))
        task_does()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            others_do()
            if found.total() < count:
                loop.call_soon(next_turn)

        waits = [asyncio.ensure_future(work(mine)) for mine, _ in pairs]
        await asyncio.sleep(0)
        for _, other in pairs:
            other.send(b"x")
        next_turn()
        await asyncio.gather(*waits)

    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(count)]
        for each in itertools.chain(*pairs):
            stack.enter_context(each)
        asyncio.run(main())
    assert found.total() == count
    return found


@pytest.mark.parametrize("who", ["call_does", "task_does"])
def test_calls_that_hold_the_loop_let_it_turn_in_between(who: str) -> None:
    """What a task does behind a call is of the next turn, in which others would go on."""
    assert max(went_on(40, **{who: hold}).values()) <= _AT_LEAST


def test_other_work_that_fills_each_turn_leaves_some_for_calls() -> None:
    assert len(went_on(10 * _AT_LEAST, others_do=hold)) <= 10


def test_many_that_begin_at_once_let_the_loop_turn_in_between() -> None:
    """As a service's requests that have come together."""
    begun: Counter[int] = Counter()
    turn = 0

    async def work() -> None:
        async with txpool.transaction() as transaction:
            begun[turn] += 1
            transaction.before_completion(lambda: None)  # it may be empty

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(next_turn)

        next_turn()
        await asyncio.gather(*[work() for _ in range(100)])

    asyncio.run(main())
    assert begun.total() == 100
    assert max(begun.values()) <= _AT_ONCE


def test_those_that_wait_to_begin_take_no_turns_of_the_loop() -> None:
    """First come, first served; one that is cancelled holds up nobody."""
    order: list[int] = []
    most = 400

    async def work(number: int) -> None:
        async with txpool.transaction() as transaction:
            order.append(number)
            transaction.before_completion(lambda: None)  # it may be empty

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        ready = 0

        def next_turn() -> None:
            nonlocal ready
            ready += len(loop._ready)
            loop.call_soon(next_turn)

        tasks = [asyncio.ensure_future(work(number)) for number in range(most)]
        await asyncio.sleep(0)
        next_turn()
        for task in tasks[100:200]:
            task.cancel()
        await asyncio.wait(tasks)
        assert ready < 10 * most

    asyncio.run(main())
    assert order == [*range(100), *range(200, most)]


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


def test_an_interrupt_as_the_loop_wakes_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it has not woken by then it wakes when it runs again."""
    monkeypatch.setattr("txpool.aio.poller._AGAIN", 0)
    draining = Poller._drain, Poller._ready_behind, Turn.is_over, Turn._next
    codes = {each.__code__ for each in (*draining, Poller._wake_timed, Poller._due, Poller._wake, Call.wake)}
    loop = asyncio.new_event_loop()

    async def wait(mine: socket.socket, timeout: float | None) -> int:
        return await run(lambda: int(call().wait_for(mine.fileno(), READ, timeout)))

    pairs = [socket.socketpair() for _ in range(_AT_ONCE + 2)]
    waits: list[asyncio.Task[int]] = []

    async def begin() -> None:
        waits[:] = [loop.create_task(wait(mine, 0.01 if mine is pairs[0][0] else None)) for mine, _ in pairs]
        await asyncio.sleep(0)

    async def work() -> None:
        for _, other in pairs[1:]:
            other.send(b"x")
        await asyncio.wait(waits, timeout=60)

    async def end() -> None:
        async with asyncio.timeout(60):
            assert not await run(lambda: call().signal().acquire(0))  # the timer is set again by the next
            assert await asyncio.gather(*waits) == [0, *[READ] * (_AT_ONCE + 1)]

    places = 0
    loop.run_until_complete(begin())
    for _ in interrupted_somewhere(lambda: loop.run_until_complete(work()), codes):
        places += 1
        loop.run_until_complete(end())
        for mine, _ in pairs[1:]:
            mine.recv(1)
        loop.run_until_complete(begin())
    loop.run_until_complete(work())
    assert places > 10
    loop.close()
    for pair in pairs:
        for each in pair:
            each.close()


def test_an_interrupt_as_the_loop_lets_transactions_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of those that wait is forgotten, once another one begins."""
    monkeypatch.setattr("txpool.aio.poller._AGAIN", 0)
    loop = asyncio.new_event_loop()
    tasks: list[asyncio.Task[None]] = []

    async def work() -> None:
        async with txpool.transaction() as transaction:
            transaction.before_completion(lambda: None)

    async def begin() -> None:
        tasks[:] = [loop.create_task(work()) for _ in range(3 * _AT_ONCE)]
        await asyncio.wait(tasks, timeout=60)

    async def end() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks, work())

    places = 0
    for _ in interrupted_somewhere(lambda: loop.run_until_complete(begin()), {Poller._admit.__code__}):
        places += 1
        loop.run_until_complete(end())
    assert places > 10
    loop.close()


def test_an_interrupt_as_a_thread_wakes_calls() -> None:
    """Each is woken all the same, once the thread has begun to."""
    codes = {Call.wake_soon.__code__, Wakings.add.__code__}
    signals: list[Any] = []
    loop = asyncio.new_event_loop()
    runner = threading.Thread(target=loop.run_forever)
    runner.start()

    def wait() -> bool:
        signals.append(call().signal())
        return bool(signals[-1].acquire())

    async def waits() -> None:
        async with asyncio.timeout(60):
            assert await asyncio.gather(run(wait), run(wait))

    def begin() -> Any:
        signals.clear()
        waiting = asyncio.run_coroutine_threadsafe(waits(), loop)
        until(lambda: len(signals) == 2)
        return waiting

    waiting = begin()
    places = 0
    for _ in interrupted_somewhere(lambda: signals[0].release(), codes):  # noqa: PLW0108 - it is another each time
        places += 1
        signals[1].release()
        waiting.result(60)
        waiting = begin()
    for each in signals:
        each.release()
    waiting.result(60)
    assert places > 5
    loop.call_soon_threadsafe(loop.stop)
    runner.join(60)
    assert not runner.is_alive()
    loop.close()


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
