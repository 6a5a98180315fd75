"""Threads that share a transaction, while an interrupt comes to the one that writes: wherever CPython lets one in."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.support.interrupts import at_each_check, codes_of
from tests.support.waiting import until
from txpool.errors import LogError, LogUnknown
from txpool.log import forks
from txpool.log.sqlite import group
from txpool.log.sqlite.group import GroupCommit

CODES = codes_of(group)


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt, and for an exception that another thread has set."""


class Interrupting:
    """Raises `Interrupt` in the block, at the n-th place in group.py where one can come once so many have queued."""

    def __init__(self, nth: int, shared: GroupCommit, queued: int) -> None:
        self._left = nth
        self._shared = shared
        self._queued = queued
        self.begun = False
        self.raised = ""

    def strike(self, frame: FrameType) -> None:
        self.begun = self.begun or len(self._shared._queue) == self._queued
        if self.begun:
            self._left -= 1
            if self._left == -1:
                self.raised = f"in {frame.f_code.co_name}, line {frame.f_lineno}"
                raise Interrupt


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "log.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE kept (key TEXT PRIMARY KEY)")
        connection.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER)")
    connection.close()
    return path


class World:
    """A group over one table, and what its threads were told of the keys that they wanted to keep."""

    def __init__(self, database: Path) -> None:
        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA synchronous = OFF")
            return connection

        self.group = GroupCommit("the log", connect, lambda: None, deferred="DELETE FROM kept WHERE key = ?")
        self.told: dict[str, str] = {}

    def keep(self, key: str) -> None:
        try:
            self.group.write(lambda db: db.execute("INSERT INTO kept (key) VALUES (?)", (key,)))
        except LogUnknown:
            self.told[key] = "unknown"
        except LogError:
            self.told[key] = "no"
        except Interrupt:
            self.told[key] = "interrupted"
            raise
        else:
            self.told[key] = "yes"

    def kept(self) -> set[str]:
        return self.group.read(lambda db: {key for (key,) in db.execute("SELECT key FROM kept")})


@pytest.fixture
def worlds(database: Path) -> Iterator[Iterator[World]]:
    made: list[World] = []

    def making() -> Iterator[World]:
        while True:
            made.append(World(database))
            yield made[-1]
            made[-1].group.close()

    yield making()
    made[-1].group.close()


def await_asleep(world: World, count: int) -> None:
    def asleep() -> bool:
        queue = world.group._queue
        return len(queue) >= count and all(entry.woken is not None for entry in queue)

    until(asleep)


def test_wherever_an_interrupt_comes_to_the_writer_every_other_thread_is_told_the_truth(
    worlds: Iterator[World],
) -> None:
    nth = 0
    for attempt in itertools.count():
        world = next(worlds)
        world.keep(f"old {attempt}")
        keys = (f"one {attempt}", f"two {attempt}")
        others = [threading.Thread(target=world.keep, args=(key,), daemon=True) for key in keys]
        with world.group._write_lock:
            for count, thread in enumerate(others, 1):
                thread.start()
                await_asleep(world, count)
        world.group.defer(f"old {attempt}")
        interrupting = Interrupting(nth, world.group, 3)
        try:
            with at_each_check(CODES, interrupting.strike):
                world.keep(f"writer {attempt}")
        except Interrupt:
            pass
        for thread in others:
            thread.join(60)
            assert not thread.is_alive(), f"interrupted {interrupting.raised}, a thread waits for ever"
        world.keep(f"later {attempt}")
        kept = world.kept()
        assert world.told[f"later {attempt}"] == "yes"
        for key, told in world.told.items():
            if not key.startswith("old") and told in ("yes", "no"):
                assert (key in kept) == (told == "yes"), f"interrupted {interrupting.raised}, {key}: {told}"
        assert f"old {attempt}" not in kept, f"interrupted {interrupting.raised}, a deferred key is lost"
        if interrupting.begun and not interrupting.raised:
            break
        nth += interrupting.begun  # else one of the others was about to sleep, and has written all by itself
    assert nth > 20, "there are so many places, and more"
    assert set(world.told.values()) == {"yes"}


@pytest.mark.parametrize(("first", "told"), [("in its work", "no"), ("while it tells", "yes")])
def test_a_writer_that_is_interrupted_twice_leaves_nobody_asleep(
    worlds: Iterator[World], monkeypatch: pytest.MonkeyPatch, first: str, told: str
) -> None:
    world, keys = next(worlds), ("one", "two", "three")
    interrupts = ["the second"] if first == "in its work" else ["the first", "the second"]
    wake = group._Entry.wake

    def interrupted(entry: group._Entry[object, str]) -> None:
        if interrupts:
            raise Interrupt(interrupts.pop())
        wake(entry)

    def work(db: sqlite3.Cursor) -> None:
        if first == "in its work":
            raise Interrupt

    threads = [threading.Thread(target=world.keep, args=(key,), daemon=True) for key in keys]
    with world.group._write_lock:
        for count, thread in enumerate(threads, 1):
            thread.start()
            await_asleep(world, count)
    monkeypatch.setattr(group._Entry, "wake", interrupted)
    with pytest.raises(Interrupt):
        world.group.write(work)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it waits for ever"
    assert world.told == dict.fromkeys(keys, told)
    assert world.kept() == (set(keys) if told == "yes" else set())


@pytest.mark.parametrize("reads", [False, True])
def test_one_that_is_interrupted_again_while_it_closes_keeps_no_lock(
    worlds: Iterator[World], database: Path, reads: bool
) -> None:
    """Even if its traceback stays alive: the connection must not stay within its transaction."""
    kept = []
    for nth in itertools.count():
        world, second = next(worlds), Second(nth)
        world.keep(f"before {nth}")
        with pytest.raises(Interrupt) as caught, at_each_check(CODES, second.strike):
            world.group.read(second.work) if reads else world.group.write(second.work)
        kept.append(caught)
        world.keep(f"after {nth}")
        assert world.told[f"after {nth}"] == "yes", f"at place {nth}"
        assert f"after {nth}" in world.kept(), f"at place {nth}"
        world.group.close()
        if not second.raised:
            break
    assert nth > 3
    assert is_emptied(database)


class Second:
    """An interrupt in the work, and another one at the n-th place in group.py behind it."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self._begun = self.raised = False

    def work(self, db: sqlite3.Cursor) -> None:
        db.execute("SELECT key FROM kept")
        self._begun = True
        raise Interrupt

    def strike(self, frame: FrameType) -> None:
        if self._begun:
            self._left -= 1
            if self._left == -1:
                self.raised = True
                raise Interrupt


def is_emptied(database: Path) -> bool:
    """Whether nobody's snapshot keeps the write-ahead log."""
    other = sqlite3.connect(database)
    try:
        (busy, _, _) = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        other.close()
    return not busy


def test_a_read_that_was_interrupted_keeps_no_snapshot(worlds: Iterator[World], database: Path) -> None:
    """Or the write-ahead log could not be emptied, and would grow until the next read."""
    world = next(worlds)
    for key in ("one", "two", "three"):
        world.keep(key)

    def interrupted(db: sqlite3.Cursor) -> None:
        db.execute("SELECT key FROM kept")
        raise Interrupt

    with pytest.raises(Interrupt):
        world.group.read(interrupted)
    world.keep("four")
    assert is_emptied(database)
    assert world.kept() == {"one", "two", "three", "four"}


def test_a_fork_that_waits_in_vain_for_a_reader_leaves_no_writer_asleep(
    worlds: Iterator[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "WAIT", 0.5)
    world = next(worlds)
    reading, done = threading.Event(), threading.Event()

    def read(_: sqlite3.Cursor) -> None:
        reading.set()
        done.wait(60)

    reader = threading.Thread(target=world.group.read, args=(read,), daemon=True)
    reader.start()
    assert reading.wait(60)
    forking = threading.Thread(target=world.group.pause, daemon=True)
    forking.start()
    while not world.group._write_lock.locked():
        time.sleep(0.001)
    writer = threading.Thread(target=world.keep, args=("kept",), daemon=True)
    writer.start()
    await_asleep(world, 1)
    forking.join(60)
    writer.join(60)
    done.set()
    reader.join(60)
    assert not writer.is_alive(), "its thread waits for ever"
    assert world.told == {"kept": "yes"}
