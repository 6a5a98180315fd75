"""Group commit: threads that write at the same time share one transaction, and its one fsync.

The thread that has the write lock writes everything that has queued up by then, and wakes the threads that it wrote
for. Then it wakes the first of those that queued up too late, which writes next. It needs no thread of its own, unless
tasks of an event loop write: then one writes for them.

A failure before COMMIT was rolled back, and is definite. After a failure of COMMIT the outcome is unknown, and the log
is poisoned.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, TypeVarTuple

from txpool import loops
from txpool.errors import LogError, LogUnknown, described
from txpool.locks import Lock
from txpool.log import forks
from txpool.log.sqlite.task_writer import TaskWriter

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Seconds after which a thread that nobody has woken looks again: one that was interrupted twice may have told nobody.
_LOOK_AGAIN = 1.0

#: The parent's cursors, in a child that was forked during a write: closing their connections there is not safe.
_abandoned: list[sqlite3.Cursor | None] = []


class _Entry(Generic[T, *Ts]):
    """A queued piece of work, and its result."""

    __slots__ = ("arguments", "cause", "done", "failure", "value", "woken", "work")

    def __init__(self, work: Callable[[sqlite3.Cursor, *Ts], T], arguments: tuple[*Ts]) -> None:
        self.work = work
        self.arguments = arguments
        self.done = False
        self.value: T
        #: None once it is durable.
        self.failure: type[LogError] | None = LogUnknown
        self.cause: BaseException | None = None
        #: Released to wake its thread, if that sleeps.
        self.woken: threading.Lock | loops.OneShotEvent | None = None

    def sleep(self, write_lock: Lock) -> None:
        """Wait until another thread has written this entry, or leaves that to its thread. May return early."""
        woken = threading.Lock()
        woken.acquire()
        self.woken = woken
        # Looked at again, since whoever has released the lock before may have seen nobody sleep.
        if not self.done and write_lock.locked():
            woken.acquire(timeout=_LOOK_AGAIN)

    def answer(self) -> None:
        """The result is there: its thread may return with it."""
        self.done = True
        self.wake()

    def wake(self) -> None:
        woken = self.woken
        if woken is not None:
            try:  # noqa: SIM105 - `suppress` costs several calls for each decision
                woken.release()
            except RuntimeError:  # it was woken before
                pass


_AnyEntry = _Entry[Any, *tuple[Any, ...]]


class GroupCommit:
    """A connection for writers and one for readers, opened when needed, and closed before a fork. Thread-safe."""

    def __init__(
        self, name: str, connect: Callable[[], sqlite3.Connection], make_room: Callable[[], None], deferred: str
    ) -> None:
        self._name = name
        self._connect = connect
        self._make_room = make_room
        self._deferred_statement = deferred
        self._writer: sqlite3.Cursor | None = None
        self._reader: sqlite3.Cursor | None = None
        #: Whether an interrupt may have left a transaction in it, or a snapshot: it is closed before its next use.
        self._writer_unclean = self._reader_unclean = False
        self._write_lock = Lock()
        self._read_lock = Lock()
        #: Its keys are the queue, since each can be removed wherever it stands, also if another thread has done so.
        self._queue: dict[_AnyEntry, None] = {}
        self._deferred: deque[tuple[str]] = deque()
        self._closed = ""
        self._task_writer = TaskWriter(self._write_for_tasks)
        #: Why nothing more may be decided, after a COMMIT whose outcome is unknown; "" otherwise.
        self.poison = ""
        #: How many transactions were committed, each with one fsync.
        self.commits = 0

    def write(self, work: Callable[[sqlite3.Cursor, *Ts], T], *arguments: *Ts) -> T:
        """Run the work in a transaction that may be shared; returns once it is durable.

        LogError: rolled back. LogUnknown, and any interrupt: it may or may not be durable, now or later.
        """
        entry = _Entry(work, arguments)
        try:
            if loops.used and (call := loops.current()) is not None and not self._closed:
                self._leave_to_writer(entry, call)
            else:
                self._queue[entry] = None
            while True:  # not `while` with a condition: see tests/unit/test_interrupts.py
                if entry.done:
                    break
                if self._write_lock.locked():  # its holder will write this entry, too, or wake the first of the queue
                    entry.sleep(self._write_lock)
                    continue
                with self._write_lock:
                    if not entry.done:
                        if entry not in self._queue:  # who wrote it was interrupted, and again while it told of that
                            break
                        self._write_queue()
                self._wake_next()
        except BaseException:
            # If it is gone, another thread has taken it, and writes it or has written it.
            self._queue.pop(entry, None)
            self._wake_next()
            raise
        if entry.failure is not None:
            raise entry.failure(f"{self._name}: {entry.cause or 'the write was interrupted'}") from entry.cause
        return entry.value

    def defer(self, key: str) -> int:
        """Do the deferred statement with this key in the next transaction, without an fsync of its own.

        Returns how many keys are waiting.
        """
        self._deferred.append((key,))
        return len(self._deferred)

    def read(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Run the work on what is committed, at the same time as writers; LogError if the log cannot be read."""
        try:
            with self._read_lock:
                self._require_open()
                if self._reader_unclean:
                    self._close_reader()
                if self._reader is None:
                    self._reader = self._connect().cursor()
                try:
                    return work(self._reader)
                except BaseException:
                    self._reader_unclean = True
                    self._close_reader()  # an interrupted query keeps its snapshot, and the log could not be emptied
                    raise
        except sqlite3.Error as error:
            raise LogError(f"{self._name}: {described(error)}") from error

    def close(self) -> None:
        """Do the deferred work, and close; later use is a LogError."""
        try:
            if self._deferred and not self._closed:
                self.write(lambda _: None)
        finally:
            with self._write_lock, self._read_lock:
                self._closed = self._closed or "the log was closed"
                self._close_writer()
                self._close_reader()
            self._task_writer.tell()
            self._wake_next()

    def abandon(self, reason: str) -> None:
        """Close the connections, since the files that they write are not the log any more.

        Nothing is decided until a new incarnation is registered in the log that its path leads to then.
        """
        with self._write_lock, self._read_lock:
            self._close_writer()
            self._close_reader()
            self.poison = reason
        self._wake_next()

    def pause(self) -> bool:
        """Before a fork: wait for writer and reader, and close the connections (see `forks`).

        False if a thread does not release its lock in time.
        """
        if not self._write_lock.acquire(timeout=forks.WAIT):
            return False
        if not self._read_lock.acquire(timeout=forks.WAIT):
            self._write_lock.release()
            self._wake_next()
            return False
        self._close_writer()
        self._close_reader()
        return True

    def resume(self) -> None:
        """After a fork, in the parent."""
        self._read_lock.release()
        self._write_lock.release()
        self._wake_next()

    def restart(self, paused: bool) -> None:
        """After a fork, in the child: begin anew, since only the parent writes what its threads have queued."""
        self._write_lock = Lock()
        self._read_lock = Lock()
        self._queue = {}
        self._deferred = deque()
        self._task_writer = TaskWriter(self._write_for_tasks)
        self.poison = ""
        if not paused:
            _abandoned.extend((self._writer, self._reader))
            self._writer = self._reader = None
            self._writer_unclean = self._reader_unclean = False
            self._closed = "this process was forked in the middle of a write of the log, and cannot use it"

    def _leave_to_writer(self, entry: _AnyEntry, call: loops.TaskCall) -> None:
        self._task_writer.start()
        entry.woken = woken = call.signal()
        self._queue[entry] = None
        self._task_writer.tell_after_turn(call)
        while True:
            if entry.done or self._closed:
                return
            woken.acquire(_LOOK_AGAIN)
            if not entry.done:  # it was told to write itself, or the loop has ended before its turn did
                self._task_writer.tell()

    def _write_for_tasks(self) -> bool:
        with self._write_lock:
            if self._queue:
                self._write_queue()
        self._wake_next()
        return not self._closed

    def _write_queue(self) -> None:
        batch: list[_AnyEntry] = []
        try:
            self._write_batch(batch)
            for entry in batch:
                entry.answer()
        except BaseException:  # an interrupt, perhaps between two answers
            for entry in batch:
                entry.answer()
            raise

    def _write_batch(self, batch: list[_AnyEntry]) -> None:
        """Move the queue into the batch, and write it. Every entry has its result then; raises only an interrupt."""
        deferred: list[tuple[str]] = []
        committing = False
        try:
            if self._writer_unclean:
                self._close_writer()
            writer = self._writer or self._opened()
            self._writer_unclean = True
            writer.execute("BEGIN IMMEDIATE")
            if self._deferred:
                deferred = [*self._deferred]
                for _ in deferred:  # only here, under the write lock, are keys taken from it
                    self._deferred.popleft()
                writer.executemany(self._deferred_statement, deferred)
            while True:  # other threads run during each statement, and may queue more
                if not self._queue:
                    break
                for entry in self._take(batch):
                    entry.value = entry.work(writer, *entry.arguments)
            committing = True
            writer.execute("COMMIT")
            self._writer_unclean = False
            self.commits += 1
            for entry in batch:
                entry.failure = None
        except BaseException as error:
            if not committing:
                self._take(batch)
            failure = self._certain_failure(error, committing)
            # If an interrupt came before a key was taken, that is there twice: the statement may be done twice.
            self._deferred.extendleft(reversed(deferred))
            for entry in batch:
                entry.failure, entry.cause = failure, error
            if not isinstance(error, Exception):
                raise

    def _take(self, batch: list[_AnyEntry]) -> list[_AnyEntry]:
        """Move the queue into the batch, and return what was moved. An interrupt may leave some of it in both."""
        taken = [*self._queue]
        batch += taken
        for entry in taken:
            self._queue.pop(entry, None)
        return taken

    def _wake_next(self) -> None:
        """After the write lock is released: wake the first thread whose entry is not written yet."""
        for entry in [*self._queue]:
            if not entry.done:
                entry.wake()
                break

    def _certain_failure(self, error: BaseException, committing: bool) -> type[LogError]:
        """LogError if nothing was written, else LogUnknown. Closes the writer: an open transaction rolls back."""
        undone = not committing
        if self._writer is not None and not isinstance(error, sqlite3.Error):
            undone = undone or self._writer.connection.in_transaction
        self._close_writer()
        if undone:
            return LogError
        if isinstance(error, sqlite3.Error):
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL and self._known_absent():
                return LogError
            self.poison = f"a write of the log failed, and its outcome is unknown ({error})"
        return LogUnknown

    def _known_absent(self) -> bool:
        """Whether, after the disk was full, the failed transaction is known not to be in the log.

        A later transaction overwrites the frames of the write-ahead log that the failed one has begun: once the later
        one is durable, the failed one can never appear.
        """
        try:
            self._make_room()
            writer = self._opened()
            self._writer_unclean = True
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("UPDATE meta SET value = value + 1 WHERE name = 'full'")
            writer.execute("COMMIT")
            self._writer_unclean = False
        except (sqlite3.Error, LogError):
            self._close_writer()
            return False
        return True

    def _require_open(self) -> None:
        if self._closed:
            raise LogError(f"{self._name}: {self._closed}")

    def _opened(self) -> sqlite3.Cursor:
        self._require_open()
        if self._writer is None:
            self._writer = self._connect().cursor()
        return self._writer

    def _close_writer(self) -> None:
        _close(self._writer)
        self._writer, self._writer_unclean = None, False

    def _close_reader(self) -> None:
        _close(self._reader)
        self._reader, self._reader_unclean = None, False


def _close(cursor: sqlite3.Cursor | None) -> None:
    """Close a cursor and its connection. A statement that the cursor keeps would keep the files open."""
    if cursor is not None:
        with suppress(sqlite3.ProgrammingError):  # the connection is closed: an interrupt came behind it
            cursor.close()
        cursor.connection.close()
