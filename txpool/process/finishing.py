"""Work that is pending when something is closed, or the process ends: done within a time limit, or left to recovery.

Each piece of work has a daemon thread, and closing does not wait for it beyond the limit: so closing neither hangs nor
raises, whatever a database, a disk or a name server does. An interpreter that ends starts no threads (CPython 3.12 and
later): `ready` starts a few standby threads before that.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from time import monotonic
from typing import Final, NamedTuple

from txpool.locks import Lock

logger = logging.getLogger("txpool")

#: Seconds that closing takes at most, all its pieces together.
LIMIT: Final = 5.0
#: How many standby threads there are: more than one, so that a database that hangs does not block all other work.
_STANDBY_THREADS: Final = 2


class PendingWork(NamedTuple):
    """One piece of work, and what is logged if it could not be done."""

    if_left: str
    work: Callable[[], object]


class _Job:
    """A piece of work that is being done."""

    def __init__(self, piece: PendingWork) -> None:
        self.work = piece
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def do(self) -> None:
        try:
            self.work.work()
        except BaseException as error:  # `finish` logs it
            self.error = error
        finally:
            self.ended.set()


_jobs: SimpleQueue[_Job] = SimpleQueue()
_standby: list[threading.Thread] = []
_starting = Lock()


def ready() -> None:
    """Start the standby threads of this process. If none can be started, `finish` logs what it has left undone."""
    if _standby:
        return
    with _starting:
        for _ in range(_STANDBY_THREADS - len(_standby)):
            thread = _thread(_stand_by)
            if thread is None:
                return
            _standby.append(thread)


def finish(pieces: Iterable[PendingWork], until: float) -> None:
    """Do the pieces at the same time; return when all have ended, or at that time of the monotonic clock.

    Their errors are logged, and so is what was not done by then.
    """
    started = monotonic()
    jobs = [_Job(piece) for piece in pieces]
    for job in jobs:
        if _thread(job.do) is None:
            if not _standby:
                job.error = RuntimeError("no thread can be started")
                job.ended.set()
            _jobs.put(job)
    for job in jobs:
        if not job.ended.wait(max(until - monotonic(), 0)):
            logger.warning("%s: it was not done within %.0f s", job.work.if_left, until - started)
        elif job.error is not None:
            logger.warning("%s: %s", job.work.if_left, " ".join(str(job.error).split()) or type(job.error).__name__)


def plural(count: int, noun: str) -> str:
    """A count with its noun, for log messages."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _thread(target: Callable[[], object]) -> threading.Thread | None:
    # An empty context: it must not inherit the transaction in which it happened to start.
    run = contextvars.Context().run
    thread = threading.Thread(target=run, args=(target,), name="txpool-finishing", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending, or there are too many
        return None
    return thread


def _stand_by() -> None:
    jobs = _jobs
    while True:
        jobs.get().do()


def _after_fork_in_child() -> None:
    global _jobs, _starting
    _jobs = SimpleQueue()
    _starting = Lock()
    _standby.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
