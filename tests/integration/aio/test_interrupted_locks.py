"""A lock of tasks is left to the next one by whoever is interrupted within its code, and by whoever is dropped."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import FrameType

import pytest

from tests.support.interrupts import at_each_check, codes_of
from txpool.aio import lock as lock_module
from txpool.aio.bridge import current, run
from txpool.aio.lock import TaskLock

CODES = codes_of(lock_module)


class Interrupt(BaseException):
    """As KeyboardInterrupt, which would end the loop."""


class Strikes:
    """Raises `Interrupt` in one call, at the n-th place in the code of locks, and once more behind that."""

    call: object = None

    def __init__(self, nth: int, gap: int) -> None:
        self._at = {nth, nth + gap}
        self._nth = nth
        self._places = 0

    def strike(self, _: FrameType) -> None:
        if current() is not self.call:
            return
        self._places += 1
        if self._places in self._at:
            raise Interrupt

    @property
    def reached(self) -> bool:
        return self._places >= self._nth


def pass_through(lock: TaskLock) -> None:
    with lock, lock:
        pass


def struck(lock: TaskLock, strikes: Strikes) -> None:
    """Be interrupted in it, handle that, and take it again."""
    strikes.call = current()
    with suppress(Interrupt), at_each_check(CODES, strikes.strike):
        pass_through(lock)
    pass_through(lock)


def hold(lock: TaskLock, seconds: float) -> None:
    call = current()
    assert call is not None
    with lock:
        call.signal().acquire(seconds)


async def interrupted(strikes: Strikes, *, held: bool) -> None:
    lock = TaskLock("")
    first = [asyncio.create_task(run(lambda: hold(lock, 0.001)))] if held else []
    await asyncio.sleep(0)
    tasks = [asyncio.create_task(run(each)) for each in (lambda: struck(lock, strikes), lambda: pass_through(lock))]
    async with asyncio.timeout(60):
        await asyncio.gather(*first, *tasks)
        await run(lambda: pass_through(lock))


@pytest.mark.parametrize("gap", [0, 1, 2, 5], ids=["once", "twice", "twice, later", "twice, later still"])
@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_wherever_an_interrupt_comes_the_next_has_the_lock(*, held: bool, gap: int) -> None:
    nth, reached = 0, True
    while reached:
        nth += 1
        strikes = Strikes(nth, gap)
        asyncio.run(interrupted(strikes, held=held))
        reached = strikes.reached
    assert nth > 10


def test_a_call_that_goes_on_behind_the_end_of_its_loop_finishes_the_one_that_it_waits_for() -> None:
    lock, order = TaskLock(""), []

    def first() -> None:
        hold(lock, 0.01)
        order.append("first")

    def second() -> None:
        with lock:
            order.append("second")

    loop = asyncio.new_event_loop()
    calls = [run(each, told=lambda _: None) for each in (first, second)]
    tasks = [loop.create_task(each) for each in calls]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    for call in reversed(calls):
        call.close()
    assert order == ["first", "second"]
    assert not any(task.done() for task in tasks)
