"""Whom a file obeys: whether a user other than its owner and root could change it, or put another in its place.

A path is walked from the root of the file system down, through every symlink in it. A folder that only trusted users
may write keeps what was seen in it, so that nothing can be swapped between the look and the use.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from txpool.errors import ConfigurationError

_MAX_LINKS = 40  # symlinks in one path, as in Linux


def why_not_trusted(path: str | Path, *, owner: int | None = None, descriptor: int | None = None) -> str | None:
    """Who else could change a file or folder, or swap it for another, and what to do; None where nobody could.

    Trusted are `owner` (a user's number, default the effective user of this process) and root: what the path leads
    to, the folders above it, and the symlinks on the way must be theirs, and not writable by others. A folder above
    may be writable by all where it is sticky, as /tmp is, and by a group that has no other user. With `descriptor`, the
    file that was opened is looked at in the place of what the path leads to now. What cannot be looked at is not
    trusted either.
    """
    trusted = {0, os.geteuid() if owner is None else owner}
    try:
        place = _walk(Path.cwd() / path, trusted)
        if isinstance(place, str):
            return place
        found = place.lstat() if descriptor is None else os.fstat(descriptor)
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if stat.S_ISDIR(found.st_mode):
        return _why_not_folder(place, found, trusted)
    if found.st_uid not in trusted:
        return _foreign_owner(place, found, trusted)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {place}, which belongs to {user(found.st_uid)}: chmod go-w {place}"
    return None


def require_owned(path: str | Path, why: str, *, owner: int | None = None, descriptor: int | None = None) -> None:
    """ConfigurationError where a file could be another user's work; `why` says what makes that matter: "it names …"."""
    reason = why_not_trusted(path, owner=owner, descriptor=descriptor)
    if reason is not None:
        raise ConfigurationError(f"{path} is not used, since {why} and is not safe from others: {reason}")


def user(number: int) -> str:
    """What a user is called, for messages."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _walk(path: Path, trusted: set[int]) -> Path | str:
    """Where a path leads to without any symlink, or why somebody else could lead it elsewhere."""
    place, left, links = Path("/"), list(reversed(path.parts[1:])), 0
    while True:
        found = place.lstat()
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MAX_LINKS:
                return f"{path} has too many symlinks in it"
            if found.st_uid not in trusted:
                return _foreign_owner(place, found, trusted)
            target = place.readlink()
            left += reversed(target.parts)  # joining an absolute part begins anew
            place = place.parent
        elif not left:
            return place
        else:
            reason = _why_not_folder(place, found, trusted)
            if reason is not None:
                return reason
        if left:
            part = left.pop()
            place = place.parent if part == ".." else place / part


def _why_not_folder(place: Path, found: os.stat_result, trusted: set[int]) -> str | None:
    """Who else could put another in the place of what a folder holds."""
    if found.st_uid not in trusted:
        return _foreign_owner(place, found, trusted)
    return why_writable(place, found) if not found.st_mode & stat.S_ISVTX else None


def why_writable(folder: Path, found: os.stat_result) -> str | None:
    """Whether others can make files in a folder, in words."""
    if not found.st_mode & stat.S_IWOTH and not (found.st_mode & stat.S_IWGRP and not _is_private(found)):
        return None
    return (
        f"others can write to the folder {folder}, which belongs to {user(found.st_uid)}, and so swap what is in it: "
        f"chmod go-w {folder}, or use another folder"
    )


def _foreign_owner(place: Path, found: os.stat_result, trusted: set[int]) -> str:
    wanted = " or ".join(user(number) for number in sorted(trusted, reverse=True))
    return f"{place} belongs to {user(found.st_uid)}, who can change it: it is to belong to {wanted}"


def _is_private(found: os.stat_result) -> bool:
    """Whether the group of a folder has no other user in it.

    Many systems give each user a group, and a umask of 002. A container has a group that no account has, by which it
    is let into its volumes.
    """
    try:
        group = grp.getgrgid(found.st_gid)
    except KeyError:
        return found.st_gid in {os.getegid(), *os.getgroups()}
    try:
        account = pwd.getpwuid(found.st_uid)
    except KeyError:
        return False
    own = group.gr_gid == account.pw_gid and group.gr_name == account.pw_name
    return own and set(group.gr_mem) <= {account.pw_name}
