"""No write of the decision log holds the loop: a thread writes into a folder, and threads on a server."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases
from tests.support.waiting import until
from txpool.aio import poller
from txpool.aio.bridge import current, run
from txpool.log.sqlite import group
from txpool.loops import READ
from txpool.tm.manager import get_manager


def test_tasks_over_a_log_on_a_server(two: TwoDatabases) -> None:
    server = two.databases.server
    txpool.configure(node_name="here", log_url=server.url("one"), log_create=True, log_password=server.password)

    async def main() -> None:
        await asyncio.gather(*(two.transfer(value, []) for value in range(40)))

    asyncio.run(main())
    assert {two.held(value) for value in range(40)} == {(1, 1)}
    assert two.prepared == []
    log = get_manager().log
    assert log is not None
    assert type(log).__name__ == "SqlLog"


def test_a_write_that_hangs_does_not_hold_the_loop(two: TwoDatabases) -> None:
    asyncio.run(two.transfer(1, []))
    log: Any = get_manager().log

    async def main() -> None:
        with log._group._write_lock:
            task = asyncio.create_task(two.transfer(2, []))
            while len(two.prepared) < 2:
                await asyncio.sleep(0.01)
            async with await txpool.aconnect(two.one) as connection:
                await connection.execute("insert into t values (3)")
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()  # it is being decided
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert two.held(2) == (1, 1)
    assert two.held(3) == (1, 0)
    assert two.prepared == []


def test_tasks_share_a_flush(two: TwoDatabases) -> None:
    """What has queued up while one flush is on its way is written by the next, all of it."""
    asyncio.run(two.transfer(100, []))
    log: Any = get_manager().log
    before = log.commits

    async def main() -> None:
        with log._group._write_lock:
            tasks = [asyncio.create_task(two.transfer(value, [])) for value in range(5)]
            while len(log._group._queue) < 5:
                await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert log.commits == before + 1
    assert {two.held(value) for value in range(5)} == {(1, 1)}


class Turns:
    """Calls that go on for so many turns of the loop, and then ask for what is called behind a turn."""

    def __init__(self) -> None:
        self.turn = 0
        #: In which turn it was called, and how many had asked for it by then.
        self.called: list[tuple[int, int]] = []
        self._asked = 0

    def tell(self) -> None:
        self.called.append((self.turn, self._asked))

    def work(self, turns: int, *, asks: bool) -> None:
        call: Any = current()
        mine, other = socket.socketpair()
        with mine, other:
            other.send(b"x")
            for _ in range(turns):
                call.wait_for(mine.fileno(), READ)
        if asks:
            self._asked += 1
            call.after_turn(self.tell)

    async def run(self, *works: tuple[int, bool]) -> list[tuple[int, int]]:
        tasks = [asyncio.create_task(run(partial(self.work, turns, asks=asks))) for turns, asks in works]
        await asyncio.sleep(0)
        while not all(task.done() for task in tasks) or not self.called:
            self.turn += 1
            await asyncio.sleep(0)
        return self.called


def test_decisions_of_the_next_turns_share_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as other calls go on, a flush waits for a few turns: they may be about to decide."""
    monkeypatch.setattr(poller, "_GATHERING", 3600.0)
    ((_, asked),) = asyncio.run(Turns().run((1, True), (2, True), (3, True)))
    assert asked == 3


def test_a_flush_waits_for_a_few_turns_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "_GATHERING", 3600.0)
    ((behind, _),) = asyncio.run(Turns().run((1, True), (50, False)))
    ((alone, _),) = asyncio.run(Turns().run((1, True)))
    assert behind == alone + poller._TURNS_MORE


def test_a_flush_waits_for_no_turn_that_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "_GATHERING", 0.0)
    called = asyncio.run(Turns().run((1, True), (2, True), (3, True)))
    assert [asked for _, asked in called] == [1, 2, 3]


def test_two_loops_that_first_decide_at_once(two: TwoDatabases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may have started a thread that writes: all of them end with the log."""
    both, start = threading.Barrier(2, timeout=60), threading.Thread.start

    def start_at_once(thread: threading.Thread) -> None:
        if thread.name == "txpool-log":
            both.wait()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_at_once)
    loops = [threading.Thread(target=asyncio.run, args=(two.transfer(value, []),)) for value in (1, 2)]
    for each in loops:
        each.start()
    for each in loops:
        each.join(120)
    assert {two.held(value) for value in (1, 2)} == {(1, 1)}
    log: Any = get_manager().log
    log.close()
    until(lambda: not any(each.name == "txpool-log" for each in threading.enumerate()))


def test_a_loop_that_stands_still_delays_no_other_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loop's task has queued is told behind that loop's turn, and another loop's behind its own."""
    monkeypatch.setattr(group, "_LOOK_AGAIN", 3600.0)
    path = tmp_path / "log.db"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    with connect() as made:
        made.execute("create table kept (value integer)")
    made.close()
    shared = group.GroupCommit("the log", connect, lambda: None, deferred="delete from kept where value = ?")
    stands, goes_on = threading.Event(), threading.Event()

    def keep(value: int) -> None:
        shared.write(lambda db: db.execute("insert into kept values (?)", (value,)))

    async def first() -> None:
        task = asyncio.create_task(run(lambda: keep(1)))
        await asyncio.sleep(0)  # it has queued, in this turn
        stands.set()
        goes_on.wait(120)
        await task

    one = threading.Thread(target=lambda: asyncio.run(first()), daemon=True)
    other = threading.Thread(target=lambda: asyncio.run(run(lambda: keep(2))), daemon=True)
    one.start()
    assert stands.wait(60)
    other.start()
    other.join(60)
    ended = not other.is_alive()
    goes_on.set()
    one.join(60)
    assert ended
    assert shared.read(lambda db: sorted(db.execute("select value from kept"))) == [(1,), (2,)]
    shared.close()
