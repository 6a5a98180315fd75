"""Open files that have locks. A forked child closes them, or it would keep the locks of a parent that is dead."""

from __future__ import annotations

import fcntl
import io
import os
from pathlib import Path
from weakref import WeakSet


class LockedFile(io.FileIO):
    """An open file. One that nobody has any more is closed, as after a transaction that was dropped."""

    def __del__(self) -> None:
        self.close()


_opened: WeakSet[LockedFile] = WeakSet()


def _after_fork_in_child() -> None:
    for file in [*_opened]:
        file.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


def open_to_lock(path: str | Path, *, append: bool = False, within: int | None = None) -> LockedFile:
    """A file that is there, open for reading and writing, in this process alone. OSError, ELOOP of a link."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_APPEND if append else 0)
    found = LockedFile(os.open(path, flags, dir_fd=within), "r+")
    _opened.add(found)
    return found


def unlock(file: LockedFile) -> None:
    """Let a lock go, also for a child that has the file. Nothing in a child, which has closed it."""
    if not file.closed:
        fcntl.flock(file, fcntl.LOCK_UN)
