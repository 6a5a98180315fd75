"""The lock files of incarnations: each holds an exclusive `flock` on a file of its own while its process lives.

Liveness only says when fencing disturbs nobody; safety rests on the fence. So if it is not certain that an
incarnation is alive it counts as dead, which leads to a fence, and not to a recovery that waits for ever.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from txpool.errors import LogError, described
from txpool.xid import gtrid_prefix


class IncarnationLock:
    """The lock of this process's own incarnation, taken before its name is published; LogError if it cannot be."""

    def __init__(self, folder: Path, node: str, name: str) -> None:
        self.name = name
        #: What the gtrids that the incarnation gives begin with.
        self.prefix = gtrid_prefix(node, name)
        self._path = _path(folder, name)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._file: IO[bytes] = _opened(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "wb")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LogError(f"no incarnation can be registered, and nothing was done: {described(error)}") from error

    def release(self) -> None:
        """Release the lock: from now on recovery may fence the incarnation."""
        self._file.close()

    def disown(self) -> None:
        """In a forked child: close this copy. An unlock would free the parent's, which is the same lock."""
        self._file.close()

    def discard(self) -> None:
        """Release the lock of a name that was never published, and remove its file."""
        with suppress(OSError):
            self._path.unlink()
        self._file.close()


def alive(folder: Path, name: str) -> bool:
    """Whether a process holds the incarnation's lock now; LogError if that cannot be read.

    A missing file means dead: it was removed when the incarnation was fenced, or lost with the power before its
    directory was written. If a person deleted the file of a living process, the fence still keeps it safe.
    """
    try:
        file = _opened(_path(folder, name), os.O_RDONLY, "rb")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LogError(f"it cannot be told whether incarnation {name} is alive: {described(error)}") from error
    with file:
        try:
            # Shared, so that two processes that test at the same time do not take each other for the owner.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def remove(folder: Path, name: str) -> None:
    """Remove the file of a fenced incarnation. If that fails it does no harm, since a name is never used again."""
    with suppress(OSError):
        _path(folder, name).unlink()


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.lock"


def _opened(path: Path, flags: int, mode: str) -> IO[bytes]:
    """Open a lock's file, following no symlink; a new one can be written by its owner alone."""
    return os.fdopen(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), mode)
