"""Who is alive: each incarnation holds an exclusive `flock` on a file of its own for as long as its process lives.

Liveness only tells when it is polite to fence; safety rests on the fence. So every doubt here is settled in favour
of "dead", which leads to a fence, and never of a recovery that waits for ever.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from txpool.errors import LogError


class IncarnationLock:
    """The lock of this process's own incarnation, taken before its name is published; LogError where it cannot be."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._path = _path(folder, name)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._file: IO[bytes] = _opened(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "wb")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LogError(f"no incarnation can be registered, and nothing was done: {error}") from error

    def release(self) -> None:
        """Let go: whoever gets the lock may fence the incarnation."""
        self._file.close()

    def disown(self) -> None:
        """In a forked child: close this copy. An unlock would free the parent's, which is the same lock."""
        self._file.close()

    def discard(self) -> None:
        """Let go of a name that was never published."""
        with suppress(OSError):
            self._path.unlink()
        self._file.close()


def alive(folder: Path, name: str) -> bool:
    """Whether a process holds the incarnation's lock now; LogError where that cannot be told.

    A file that is missing was removed with its fence, or lost with the power before its directory was written; both
    mean dead. Where a person deleted it under a living process, the fence still keeps everybody safe.
    """
    try:
        file = _opened(_path(folder, name), os.O_RDONLY, "rb")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LogError(f"it cannot be told whether incarnation {name} is alive: {error}") from error
    with file:
        try:
            # Shared, so that two that look at once do not take each other for the owner.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def remove(folder: Path, name: str) -> None:
    """Remove the file of a fenced incarnation; one that stays does no harm, since its name is never used again."""
    with suppress(OSError):
        _path(folder, name).unlink()


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.lock"


def _opened(path: Path, flags: int, mode: str) -> IO[bytes]:
    """A lock's file, which no symlink leads to and nobody else may write."""
    return os.fdopen(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), mode)
