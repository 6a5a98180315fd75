"""Timeouts by one thread: in order, once, and not when cancelled."""

from __future__ import annotations

import queue
import threading

from txpool.tm.timers import Timers


def test_they_come_in_order_whatever_the_order_of_asking() -> None:
    heard: queue.Queue[int] = queue.Queue()
    timers = Timers()
    for number in (3, 1, 2):
        timers.after(number * 0.02, lambda n=number: heard.put(n))  # type: ignore[misc]
    assert [heard.get(timeout=10) for _ in range(3)] == [1, 2, 3]


def test_a_cancelled_one_never_comes() -> None:
    heard: queue.Queue[str] = queue.Queue()
    timers = Timers()
    cancelled = timers.after(0.02, lambda: heard.put("cancelled"))
    timers.after(0.04, lambda: heard.put("kept"))
    cancelled.cancel()
    assert heard.get(timeout=10) == "kept"


def test_an_error_of_one_does_not_stop_the_others() -> None:
    heard = threading.Event()
    timers = Timers()
    timers.after(0.0, lambda: 1 / 0)
    timers.after(0.02, heard.set)
    assert heard.wait(10)


def test_no_thread_before_the_first() -> None:
    before = threading.active_count()
    Timers()
    assert threading.active_count() == before
