"""Forks of a process that has logs open: each log is idle while the process is copied, and the child begins anew.

SQLite keeps its locks by process and inode. If a connection is open at the fork, each new connection in the child
counts on locks that only the parent holds. So they are closed before, and opened again on both sides when needed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from txpool.locks import Lock

WAIT: Final = 15.0  # seconds for a writer to end; longer than one waits for another process's write


class Forkable(Protocol):
    """A log that prepares for forks."""

    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


_logs: weakref.WeakSet[Forkable] = weakref.WeakSet()
_opening = Lock()
_prepared: list[Forkable] = []
_held = False


@contextmanager
def opening(log: Forkable) -> Iterator[None]:
    """While the log is opened within the block, the process does not fork; from then on the log is called at forks."""
    with _opening:
        yield
        _logs.add(log)


def _before() -> None:
    global _held
    _held = _opening.acquire(timeout=WAIT)
    _prepared[:] = _logs
    for log in _prepared:
        log.before_fork()


def _after_in_parent() -> None:
    for log in _prepared:
        log.after_fork_in_parent()
    _prepared.clear()
    if _held:
        _opening.release()


def _after_in_child() -> None:
    global _opening
    _opening = Lock()
    for log in _prepared:
        log.after_fork_in_child()
    _prepared.clear()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
