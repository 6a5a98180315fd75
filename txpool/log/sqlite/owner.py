"""The owner of a log's folder: only that user may use the log; root may not, either.

A user who can write to the folder, or replace it, decides what commits. root would create files that the owner cannot
use, and would follow links that the owner has placed: so root, too, uses only a log of its own.
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


def require_safe_place(folder: Path) -> None:
    """LogError if a log cannot be created safely: another user could replace its folder, or has created it."""
    if os.path.lexists(folder):
        require_own(folder)
        return
    reason = why_not_trusted(folder.parent)
    if reason is not None:
        raise LogError(f"the decision log {folder} is not made there, and {_SAFE}: {reason}")


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder. OSError if nobody knows: since Python 3.14 `Path.exists()` hides it."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def require_own(folder: Path) -> bool:
    """LogError unless a log's folder and its parts belong to this user, and nobody else can change them.

    False if there is no folder: another user may create one any moment. Once the folder is this user's, only this
    user and root can change it between this check and the use.
    """
    try:
        status = folder.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LogError(f"the decision log {folder} cannot be looked at, and {_SAFE}: {error.strerror}") from error
    if status.st_uid != os.geteuid():
        reason: str | None = _wrong_owner(folder, status.st_uid)
    else:  # also in a sticky folder, others could create the files that do not exist yet
        reason = why_not_trusted(folder) or why_writable(folder, status)
    reachable = bool(status.st_mode & (stat.S_IXGRP | stat.S_IXOTH))
    for name in (*_FILES, _FOLDER):
        reason = reason or _why_not_plain(folder / name, folder=name == _FOLDER, reachable=reachable)
    if reason is not None:
        raise LogError(f"the decision log {folder} is not safe from others, and {_SAFE}: {reason}")
    return True


def _wrong_owner(folder: Path, owner: int) -> str:
    return (
        f"it belongs to {user(owner)}, and this process is {user(os.geteuid())}: run it as {user(owner)} "
        f"(sudo -u {user(owner)} …), or name a folder of your own in log.url"
    )


def _why_not_plain(path: Path, *, folder: bool, reachable: bool) -> str | None:
    """Why a part of a log is not safe, if so; `reachable` says whether others can enter the log's folder."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if not (stat.S_ISDIR if folder else stat.S_ISREG)(status.st_mode):
        return f"{path} is no plain {'folder' if folder else 'file'}, and so not what txpool made: look where it leads"
    # Files of root are safe: they are plain files, and a log that cannot write them fails.
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to {user(status.st_uid)}: chown {user(os.geteuid())} {path}, if you know what is in it"
    if reachable and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {path}, which belongs to {user(status.st_uid)}: chmod go-w {path}"
    return None
