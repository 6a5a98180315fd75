"""Group commit: threads that write at the same time share one transaction, and its one fsync, without a thread.

Whoever has the turn writes everything that has queued up by then, opens the gates of those it wrote for, and lets the
first of those that came too late have the next turn. A failure before COMMIT was rolled back and is definite. One at
COMMIT is unknown, and poisons.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from txpool.errors import LogError, LogUnknown
from txpool.log import forks

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

#: A parent's connections in a child that was forked in the middle of a write: closing one there is not safe.
_abandoned: list[sqlite3.Connection | None] = []


class _Entry(Generic[T]):
    """A piece of work, and what became of it."""

    __slots__ = ("cause", "failure", "gate", "settled", "value", "work")

    def __init__(self, work: Work[T]) -> None:
        self.work = work
        self.settled = False
        self.value: T
        self.failure: type[LogError] | None = LogUnknown  # until the writer says better
        self.cause: BaseException | None = None
        self.gate = threading.Lock()
        self.gate.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # it is open already
            self.gate.release()


class GroupCommit:
    """A connection with a turn for writers and one for readers, open from need until the next fork. Thread-safe."""

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection], make_room: Callable[[], None]) -> None:
        self._name = name
        self._connect = connect
        self._make_room = make_room
        self._connection: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._turn = threading.Lock()
        self._reading = threading.Lock()
        self._queue: deque[_Entry[Any]] = deque()
        self._later: deque[Work[None]] = deque()
        self._closed = ""
        #: Why nothing more may be decided, after a COMMIT whose outcome the disk did not tell; "" while all is well.
        self.poison = ""
        #: How many transactions were committed, each with one fsync.
        self.commits = 0

    def write(self, work: Work[T]) -> T:
        """Run the work in a transaction that may be shared; returns once it is durable.

        LogError: rolled back. LogUnknown, and any interrupt: it may or may not be durable, now or later.
        """
        entry = _Entry(work)
        self._queue.append(entry)
        try:
            while not entry.settled:
                if self._turn.locked():  # so its holder will write this too, or wake the first of the queue
                    entry.gate.acquire()
                    continue
                with self._turn:
                    if not entry.settled:
                        self._write_queue()
                self._pass_on()
        except BaseException:
            with suppress(ValueError):  # it is being written, or was
                self._queue.remove(entry)
            self._pass_on()
            raise
        if entry.failure is not None:
            raise entry.failure(f"{self._name}: {entry.cause or 'the write was interrupted'}") from entry.cause
        return entry.value

    def later(self, work: Work[None]) -> int:
        """Let the next transaction carry the work, at no fsync of its own; returns how much is waiting."""
        self._later.append(work)
        return len(self._later)

    def read(self, work: Work[T]) -> T:
        """Run the work on what is committed, beside the writers; LogError where the log cannot be read."""
        try:
            with self._reading:
                self._admit()
                if self._reader is None:
                    self._reader = self._connect()
                return work(self._reader)
        except sqlite3.Error as error:
            raise LogError(f"{self._name}: {error}") from error

    def close(self) -> None:
        """Write what waits, and close; later use is a LogError."""
        try:
            if self._later and not self._closed:
                self.write(lambda _: None)
        finally:
            with self._turn, self._reading:
                self._closed = self._closed or "the log was closed"
                self._disconnect()
                self._stop_reading()
            self._pass_on()

    def abandon(self, reason: str) -> None:
        """Close the connections: what they write into is not the log any more.

        Nothing is decided before a new incarnation could be registered in what is there then.
        """
        with self._turn, self._reading:
            self._disconnect()
            self._stop_reading()
            self.poison = reason
        self._pass_on()

    def pause(self) -> bool:
        """Before a fork: wait for the writer and close the connection; False where somebody keeps the turn.

        SQLite keeps its locks by process and inode. A connection that a child inherits makes every new one there
        believe in locks that only the parent holds, so none may be open at the fork.
        """
        if not self._turn.acquire(timeout=forks.WAIT):
            return False
        if not self._reading.acquire(timeout=forks.WAIT):
            self._turn.release()
            return False
        self._disconnect()
        self._stop_reading()
        return True

    def resume(self) -> None:
        """After a fork, in the parent."""
        self._reading.release()
        self._turn.release()
        self._pass_on()

    def restart(self, quiet: bool) -> None:
        """After a fork, in the child: nothing that the parent's threads have queued is ours to write."""
        self._turn = threading.Lock()
        self._reading = threading.Lock()
        self._queue = deque()
        self._later = deque()
        self.poison = ""
        if not quiet:
            _abandoned.extend((self._connection, self._reader))
            self._connection = self._reader = None
            self._closed = "this process was forked in the middle of a write of the log, and cannot use it"

    def _write_queue(self) -> None:
        batch: list[_Entry[Any]] = []
        riders: list[Work[None]] = []
        committing = False
        try:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            _drain(self._later, riders)
            for work in riders:
                work(connection)
            written = 0
            while self._queue:  # each statement lets other threads run, and queue up
                _drain(self._queue, batch)
                for entry in batch[written:]:
                    entry.value = entry.work(connection)
                written = len(batch)
            committing = True
            connection.execute("COMMIT")
            self.commits += 1
            for entry in batch:
                entry.failure = None
        except BaseException as error:
            if not committing:
                _drain(self._queue, batch)
            failure = self._failed(error, committing)
            self._later.extendleft(reversed(riders))
            for entry in batch:
                entry.failure, entry.cause = failure, error
            if not isinstance(error, Exception):
                raise
        finally:
            for entry in batch:
                entry.settled = True
                entry.wake()

    def _pass_on(self) -> None:
        """After a turn: wake whoever queued up during it and nobody has written for."""
        if self._queue:
            with suppress(IndexError):  # it has just been written for
                self._queue[0].wake()

    def _failed(self, error: BaseException, committing: bool) -> type[LogError]:
        """What is certain after a failure; closes the connection, and so rolls back what is open."""
        undone = not committing
        if self._connection is not None and not isinstance(error, sqlite3.Error):
            undone = undone or self._connection.in_transaction
        self._disconnect()
        if undone:
            return LogError
        if isinstance(error, sqlite3.Error):
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL and self._known_absent():
                return LogError
            self.poison = f"a write of the log failed, and its outcome is unknown ({error})"
        return LogUnknown

    def _known_absent(self) -> bool:
        """Whether, after a full disk, the failed transaction is known to be nowhere.

        A later transaction overwrites the very frames of the write-ahead log that the failed one had begun, so once
        one is durable the other can never appear.
        """
        try:
            self._make_room()
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'full'")
            connection.execute("COMMIT")
        except (sqlite3.Error, LogError):
            self._disconnect()
            return False
        return True

    def _admit(self) -> None:
        if self._closed:
            raise LogError(f"{self._name}: {self._closed}")

    def _opened(self) -> sqlite3.Connection:
        self._admit()
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _drain(queue: deque[T], into: list[T]) -> None:
    """Move all of it in one call of C, so that no interrupt comes between taking an entry and keeping it."""
    with suppress(IndexError):
        into.extend(iter(queue.popleft, None))
