"""The ownership of files: whether a user other than the owner and root could change a file, or replace it.

A path is followed from the root of the file system down, through every symlink in it. In a folder that only trusted
users may write, nothing can be replaced between the check and the use.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from txpool.errors import ConfigurationError

_MAX_LINKS = 40  # symlinks in one path, as Linux allows


def why_not_trusted(path: str | Path, *, owner: int | None = None, descriptor: int | None = None) -> str | None:
    """Which other user could change a file or folder, or replace it, and what to do; None if no user could.

    Trusted are `owner` (a user's number, default the effective user of this process) and root: the file or folder,
    the folders above it, and the symlinks on the way must be theirs, and not writable by others. A folder above may be
    writable by all if it is sticky, as /tmp is, and by a group that has no other user. With `descriptor`, that open
    file is checked instead of the one that the path leads to now. What cannot be checked is not trusted.
    """
    trusted = {0, os.geteuid() if owner is None else owner}
    try:
        real_path = _walk(Path.cwd() / path, trusted)
        if isinstance(real_path, str):
            return real_path
        status = real_path.lstat() if descriptor is None else os.fstat(descriptor)
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if stat.S_ISDIR(status.st_mode):
        return _why_not_folder(real_path, status, trusted)
    if status.st_uid not in trusted:
        return _foreign_owner(real_path, status, trusted)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {real_path}, which belongs to {user(status.st_uid)}: chmod go-w {real_path}"
    return None


def require_owned(path: str | Path, why: str, *, owner: int | None = None, descriptor: int | None = None) -> None:
    """ConfigurationError if another user could have written a file; `why` says why that matters: "it names …"."""
    reason = why_not_trusted(path, owner=owner, descriptor=descriptor)
    if reason is not None:
        raise ConfigurationError(f"{path} is not used, since {why} and is not safe from others: {reason}")


def user(number: int) -> str:
    """The name of a user, for messages."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _walk(path: Path, trusted: set[int]) -> Path | str:
    """The file that a path leads to, without any symlink; or the reason why another user could change that."""
    real_path, remaining, links = Path("/"), list(reversed(path.parts[1:])), 0
    while True:
        status = real_path.lstat()
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return f"{path} has too many symlinks in it"
            if status.st_uid not in trusted:
                return _foreign_owner(real_path, status, trusted)
            target = real_path.readlink()
            remaining += reversed(target.parts)  # joining an absolute part begins at the root again
            real_path = real_path.parent
        elif not remaining:
            return real_path
        else:
            reason = _why_not_folder(real_path, status, trusted)
            if reason is not None:
                return reason
        if remaining:
            part = remaining.pop()
            real_path = real_path.parent if part == ".." else real_path / part


def _why_not_folder(real_path: Path, status: os.stat_result, trusted: set[int]) -> str | None:
    """Which other user could replace a file in this folder, and what to do; None if no user could."""
    if status.st_uid not in trusted:
        return _foreign_owner(real_path, status, trusted)
    return why_writable(real_path, status) if not status.st_mode & stat.S_ISVTX else None


def why_writable(folder: Path, status: os.stat_result) -> str | None:
    """Why others can create files in a folder, and what to do; None if they cannot."""
    if not status.st_mode & stat.S_IWOTH and not (status.st_mode & stat.S_IWGRP and not _is_private(status)):
        return None
    return (
        f"others can write to the folder {folder}, which belongs to {user(status.st_uid)}, and so swap what is in it: "
        f"chmod go-w {folder}, or use another folder"
    )


def _foreign_owner(real_path: Path, status: os.stat_result, trusted: set[int]) -> str:
    wanted = " or ".join(user(number) for number in sorted(trusted, reverse=True))
    return f"{real_path} belongs to {user(status.st_uid)}, who can change it: it is to belong to {wanted}"


def _is_private(status: os.stat_result) -> bool:
    """Whether the group of a folder has no other user in it.

    Many systems give each user a group, and a umask of 002. A container may have a group without any account, which
    gives it access to its volumes.
    """
    try:
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return status.st_gid in {os.getegid(), *os.getgroups()}
    try:
        account = pwd.getpwuid(status.st_uid)
    except KeyError:
        return False
    own = group.gr_gid == account.pw_gid and group.gr_name == account.pw_name
    return own and set(group.gr_mem) <= {account.pw_name}
