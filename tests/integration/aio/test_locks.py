"""No lock of a thread is held while a task is suspended: another task of that thread would enter it, or freeze."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

from tests.integration.aio.two_databases import TwoDatabases
from tests.support.repository import ROOT
from txpool.aio.bridge import run
from txpool.aio.lock import TaskLock

# All locks that `txpool.locks` makes tell which thread has them; so do those that are made before anything is imported.
_HELD = """
import _thread, sys, asyncio
from collections import Counter
import txpool.locks
held = Counter()

class Held:
    def __init__(self):
        self._lock = self.make()
    def acquire(self, *args, **options):
        got = self._lock.acquire(*args, **options)
        held[_thread.get_ident()] += got
        return got
    def release(self):
        self._lock.release()
        held[_thread.get_ident()] -= 1
    def __enter__(self):
        return self.acquire()
    def __exit__(self, *_):
        self.release()

class Lock(Held):
    make = staticmethod(_thread.allocate_lock)
    def locked(self):
        return self._lock.locked()

class RLock(Held):
    make = _thread.RLock
    def _is_owned(self):
        return self._lock._is_owned()

txpool.locks.Lock, txpool.locks.RLock = Lock, RLock
import txpool
from txpool.aio.call import Call
pause, switches = Call._pause, 0

def checked(self):
    global switches
    switches += 1
    assert not held[_thread.get_ident()], "a lock is held over a switch"
    pause(self)

Call._pause = checked
one, two, password, log = sys.argv[1:]
options = {"driver": "psycopg", "mode": "xa", "password": password, "pool_max_size": 3, "pool_max_wait": 60}
sources = [txpool.DataSource(name=name, url=url, **options) for name, url in (("one", one), ("two", two))]
txpool.configure(node_name="here", log_url=log, log_create=True)

async def insert(value, source):
    async with await txpool.aconnect(source) as connection:
        await connection.execute("insert into t values (%s)", (value,))

async def work(value):
    try:
        async with txpool.transaction():
            await asyncio.gather(*(insert(value, source) for source in sources))
            if value % 3 == 0:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass

async def main():
    await asyncio.gather(*(work(value) for value in range(30)))
    for source in sources:
        async with await txpool.aconnect(source) as connection:
            await connection.execute("insert into t values (100)")

asyncio.run(main())
assert switches > 100
"""


def test_no_lock_is_held_over_a_switch(two: TwoDatabases, tmp_path: Path) -> None:
    server = two.databases.server
    arguments = (server.url("one"), server.url("two"), str(server.password), f"sqlite:///{tmp_path}/other")
    done = subprocess.run(
        [sys.executable, "-c", _HELD, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert two.databases.rows("one", "select count(*) from t") == [(21,)]


def test_tasks_and_threads_have_a_lock_in_turn() -> None:
    """First in first out over both; reentrant for its owner; nobody is in it with another."""
    lock = TaskLock("")
    inside: list[object] = []
    releasing: list[object] = []
    order: list[object] = []

    def work(name: object, gate: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        with lock, lock:
            order.append(name)
            inside.append(name)
            assert inside == [name]
            if name == "first":
                from txpool import loops

                call = loops.current()
                assert call is not None
                woken = call.signal()
                loop.call_later(60, woken.release)
                releasing.append(loop.create_task(_release(gate, woken)))
                woken.acquire()
            inside.remove(name)

    async def main() -> None:
        loop, gate = asyncio.get_running_loop(), asyncio.Event()
        waiting = [asyncio.create_task(run(lambda: work("first", gate, loop)))]
        threads: list[threading.Thread] = []
        await asyncio.sleep(0)
        for number in range(20):
            queued = len(lock._waiters)
            if number % 2:
                waiting.append(asyncio.create_task(run(lambda number=number: work(number, gate, loop))))  # type: ignore[misc]
            else:
                threads.append(threading.Thread(target=work, args=(number, gate, loop)))
                threads[-1].start()
            while len(lock._waiters) == queued:
                await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*waiting, *(asyncio.to_thread(thread.join) for thread in threads))

    asyncio.run(main())
    assert order == ["first", *range(20)]


async def _release(gate: asyncio.Event, woken: object) -> None:
    await gate.wait()
    woken.release()  # type: ignore[attr-defined]


def test_a_task_that_is_cancelled_leaves_the_queue() -> None:
    lock = TaskLock("")

    async def main() -> None:
        with_it, let_go = asyncio.Event(), []

        def hold() -> None:
            from txpool import loops

            with lock:
                call = loops.current()
                assert call is not None
                let_go.append(call.signal())
                with_it.set()
                let_go[0].acquire()

        def enter() -> str:
            with lock:
                return "in"

        holder = asyncio.create_task(run(hold))
        await with_it.wait()
        struck, other = asyncio.create_task(run(enter)), asyncio.create_task(run(enter))
        while len(lock._waiters) < 2:
            await asyncio.sleep(0)
        struck.cancel()
        await asyncio.wait([struck])
        assert struck.cancelled()
        let_go[0].release()
        assert await other == "in"
        await holder
        assert await run(enter) == "in"

    asyncio.run(main())
