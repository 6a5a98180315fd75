"""An interrupt that comes as a thread gets a lock: the lock is free again."""

from __future__ import annotations

import ast
import signal
import sys
import threading
from _thread import get_ident, interrupt_main
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.support.repository import ROOT
from tests.support.waiting import SECONDS, until
from txpool.locks import DeadlineLock, Lock, RLock


def take(lock: Any) -> None:
    with lock:
        pass


@pytest.fixture
def interruptible() -> Iterator[None]:
    """An interrupt is raised, even where the tests run with that ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("make", [Lock, RLock, lambda: DeadlineLock(lambda waited: SECONDS)])
def test_an_interrupt_as_it_is_taken(make: Callable[[], Any]) -> None:
    interrupted(make())


def test_one_that_is_not_had_within_its_time() -> None:
    def left(waited: bool) -> float:
        asked.append(waited)
        if waited:
            raise ZeroDivisionError
        return 0

    asked = list[bool]()
    lock, held, over = DeadlineLock(left), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    with pytest.raises(ZeroDivisionError):
        take(lock)
    assert asked == [False, True]
    over.set()
    holder.join()
    with lock, lock:
        assert not is_free(lock)
    assert is_free(lock)


def interrupted(lock: Any) -> None:
    held, main = threading.Event(), get_ident()
    codes = {take.__code__, getattr(type(lock).__enter__, "__code__", None)}

    def waits() -> bool:
        frame = sys._current_frames()[main]
        return frame.f_code in codes and frame.f_lasti > 0  # behind the start of the function

    def hold() -> None:
        with lock:
            held.set()
            until(waits)
            interrupt_main()  # seen by the main thread once it has the lock

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(SECONDS)
    try:
        with pytest.raises(KeyboardInterrupt):
            take(lock)
    finally:
        holder.join()
    assert is_free(lock)


def is_free(lock: Any) -> bool:
    """Whether another thread gets it."""
    free: list[bool] = []

    def work() -> None:
        if lock.acquire(timeout=1):
            lock.release()
            free.append(True)

    other = threading.Thread(target=work)
    other.start()
    other.join()
    return bool(free)


def test_as_those_of_python() -> None:
    with Lock() as held:
        assert held
    lock = Lock()
    with pytest.raises(ZeroDivisionError), lock:
        assert lock.locked()
        1 / 0
    assert not lock.locked()
    assert lock.acquire(timeout=0)
    assert not lock.acquire(blocking=False)
    lock.release()
    reentrant = RLock()
    with reentrant, reentrant:
        assert reentrant._is_owned()  # type: ignore[attr-defined]
        assert not is_free(reentrant)
    assert is_free(reentrant)


#: What makes a lock of Python's own, and why no `with` takes it.
OTHERS = {
    "txpool/locks.py": "makes these",
    "txpool/aio/lock.py": "a one-shot event",
    "txpool/aio/threads.py": "a one-shot event",
    "txpool/log/sqlite/group.py": "a one-shot event",
    "txpool/pool/waiting.py": "a one-shot event",
    "txpool/tm/completion/dropped.py": "a one-shot event",
    "txpool/resources/postgresql/session/forks.py": "psycopg's own: a connection whose lock is held is given up",
    "txpool/tm/background/timers.py": "a condition over a lock of these",
    "recovery/scan/datasources/workers.py": "a condition over a lock of these",
}
MODULES = ("threading", "_thread", "multiprocessing")
NAMES = {"Lock", "RLock", "allocate_lock", "Condition", "Semaphore", "BoundedSemaphore"}


def test_every_other_lock_is_taken_by_no_with() -> None:
    found = set()
    files = [*Path(txpool.__file__).parent.rglob("*.py"), *(ROOT / "recovery").rglob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in MODULES:
                made = {each.name for each in node.names}
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in MODULES:
                made = {node.attr}
            else:
                continue
            if made & NAMES:
                found.add(str(file.relative_to(ROOT)))
    assert len(files) > 100
    assert found == {*OTHERS}
