"""Timeouts by one thread: in order, once, and not when cancelled."""

from __future__ import annotations

import itertools
import queue
import threading
from contextlib import suppress
from types import FrameType

from tests.support.interrupts import at_each_check
from txpool.tm.background.timers import Timers


def held() -> tuple[Timers, threading.Event]:
    """Timers whose thread is held up until the event is set."""
    timers, begun, go_on = Timers(), threading.Event(), threading.Event()
    timers.after(0.0, lambda: (begun.set(), go_on.wait(60)))
    assert begun.wait(60)
    return timers, go_on


def test_they_come_in_order_whatever_the_order_of_asking() -> None:
    heard: queue.Queue[int] = queue.Queue()
    timers, go_on = held()
    for number in (3, 1, 2):
        timers.after((number - 4) * 3600.0, lambda n=number: heard.put(n))  # type: ignore[misc]
    go_on.set()
    assert [heard.get(timeout=60) for _ in range(3)] == [1, 2, 3]


def test_a_cancelled_one_never_comes() -> None:
    heard: queue.Queue[str] = queue.Queue()
    timers, go_on = held()
    cancelled = timers.after(0.0, lambda: heard.put("cancelled"))
    timers.after(0.0, lambda: heard.put("kept"))
    cancelled.cancel()
    go_on.set()
    assert heard.get(timeout=60) == "kept"


def test_an_error_of_one_does_not_stop_the_others() -> None:
    heard = threading.Event()
    timers = Timers()
    timers.after(0.0, lambda: 1 / 0)
    timers.after(0.02, heard.set)
    assert heard.wait(60)


def test_no_thread_before_the_first() -> None:
    before = threading.active_count()
    Timers()
    assert threading.active_count() == before


def test_an_interrupt_leaves_them_working() -> None:
    """At each place: of ours, and of what enters a condition."""
    codes = {Timers.after.__code__, threading.Condition.__enter__.__code__, threading.Thread.start.__code__}
    for nth in itertools.count():
        timers, left = Timers(), [nth]

        def strike(_: FrameType, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt), at_each_check(codes, strike):
            timers.after(3600.0, lambda: None)
        heard = threading.Event()
        asking = threading.Thread(target=timers.after, args=(0.0, heard.set), daemon=True)
        asking.start()
        assert heard.wait(60), f"interrupted at place {nth}"
        if left[0] >= 0:
            break
    assert nth > 5
