"""Whose a log's folder is: it is used by the user that it belongs to, and by no other, root included.

Whoever can write to it, or put another in its place, decides what commits. root would make files there that its owner
cannot use, and follow what its owner has planted: so root, too, works with a log of its own only.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from txpool.config.ownership import user, why_not_trusted, why_writable
from txpool.errors import LogError

_FILES = ("log.db", "log.db-wal", "log.db-shm", "log.db-wal.damaged", "reserve")
_FOLDER = "incarnations"
_SAFE = "nothing was done"


def require_place(folder: Path) -> None:
    """LogError where a log cannot be made safely: another user could swap its folder, or has made it."""
    if os.path.lexists(folder):
        require_own(folder)
        return
    reason = why_not_trusted(folder.parent)
    if reason is not None:
        raise LogError(f"the decision log {folder} is not made there, and {_SAFE}: {reason}")


def require_own(folder: Path) -> bool:
    """LogError unless a log's folder, and all that is the log's in it, is this user's, and nobody else can change it.

    False where there is no folder: another user may make one any moment. Once it is this user's, nothing in it changes
    between the look and the use, but by this user and root.
    """
    try:
        found = folder.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LogError(f"the decision log {folder} cannot be looked at, and {_SAFE}: {error.strerror}") from error
    if found.st_uid != os.geteuid():
        reason: str | None = _other(folder, found.st_uid)
    else:  # a sticky one, too, would let others make the files that are not there yet
        reason = why_not_trusted(folder) or why_writable(folder, found)
    reachable = bool(found.st_mode & (stat.S_IXGRP | stat.S_IXOTH))
    for name in (*_FILES, _FOLDER):
        reason = reason or _why_not_plain(folder / name, folder=name == _FOLDER, reachable=reachable)
    if reason is not None:
        raise LogError(f"the decision log {folder} is not safe from others, and {_SAFE}: {reason}")
    return True


def _other(folder: Path, owner: int) -> str:
    return (
        f"it belongs to {user(owner)}, and this process is {user(os.geteuid())}: run it as {user(owner)} "
        f"(sudo -u {user(owner)} …), or name a folder of your own in log.url"
    )


def _why_not_plain(path: Path, *, folder: bool, reachable: bool) -> str | None:
    """What is wrong with a part of a log; `reachable` is whether others can enter the folder that it is in."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if not (stat.S_ISDIR if folder else stat.S_ISREG)(found.st_mode):
        return f"{path} is no plain {'folder' if folder else 'file'}, and so not what txpool made: look where it leads"
    # root may have left files there before: they lead nowhere, and fail where they cannot be written.
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to {user(found.st_uid)}: chown {user(os.geteuid())} {path}, if you know what is in it"
    if reachable and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {path}, which belongs to {user(found.st_uid)}: chmod go-w {path}"
    return None
