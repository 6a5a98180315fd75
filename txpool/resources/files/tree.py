"""Folders by descriptors: no symbolic link is followed, so that nobody leads a step elsewhere."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

from txpool.errors import NotSupportedError, OperationalError, described

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOREPLACE: Final = 1
_EXCHANGE: Final = 2


@contextmanager
def opened(name: str, within: int | None = None) -> Iterator[int]:
    """A folder's descriptor. OSError, ELOOP or ENOTDIR, of what is none, as a link to one."""
    descriptor = os.open(name, _FOLDER, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def descended(parts: Sequence[str], within: int, *, make: bool = False) -> Iterator[int]:
    """The folder that is reached by these names, one after the other; made durably, if it is not there."""
    if not parts:
        yield within
        return
    if make:
        with suppress(FileExistsError):
            make_folder(parts[0], within)
        os.fsync(within)  # also what another has made
    with opened(parts[0], within) as folder, descended(parts[1:], folder, make=make) as found:
        yield found


def written_to(folder: str) -> list[str]:
    """The files below a folder, by its real path, that this process has open for writing."""
    found = []
    for each in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # it was closed meanwhile
            name = os.readlink(f"/proc/self/fd/{each}")
            if name.startswith(f"{folder}/") and fcntl.fcntl(each, fcntl.F_GETFL) & os.O_ACCMODE:
                found += [name] if os.fstat(each).st_nlink else []
    return sorted(found)


def make_folder(name: str, within: int, mode: int = 0o777) -> None:
    """Make a folder; it is not synced. FileExistsError."""
    os.mkdir(name, mode, dir_fd=within)
    if os.geteuid() == 0:
        with opened(name, within) as made:
            give_to_owner(made, within)


def give_to_owner(made: int, within: int) -> None:
    """What root makes is the owner's of the folder that it is in: root works for them, who work there, too.

    But for a file that has another name, too: whoever works there may have given it to what is another user's.
    """
    found = os.fstat(made)
    if os.geteuid() == 0 and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
        above = os.fstat(within)
        os.fchown(made, above.st_uid, above.st_gid)


def sync_tree(folder: int, shown: str) -> None:
    """Make all that is in a folder durable, and its owner's. OperationalError for what is no file and no folder."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda each: each.name)
    for entry in found:
        mode = entry.stat(follow_symlinks=False).st_mode
        path = f"{shown}/{entry.name}"
        if stat.S_ISDIR(mode):
            with opened(entry.name, folder) as inner:
                give_to_owner(inner, folder)
                sync_tree(inner, path)
        elif stat.S_ISREG(mode):
            sync_file(entry.name, folder, give=True)
        else:
            raise OperationalError(f"{path} is neither a file nor a folder, and is not published: remove it")
    os.fsync(folder)


def sync_file(name: str, within: int, *, give: bool = False) -> None:
    """Make a file's contents durable; and the folder's owner's, if root has made it and is to give it."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
    try:
        if give:
            give_to_owner(descriptor, within)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(name: str, content: str, within: int) -> None:
    """Make a small file in place of what is there; it is not synced."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=within)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666, dir_fd=within)
    try:
        give_to_owner(descriptor, within)
        rest = memoryview(content.encode())
        while rest:  # a disk that is almost full takes a part
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def read_file(name: str, within: int, owners: Container[int], longest: int = 300) -> str:
    """What a small file of one of these users holds; empty if it is not there, or is none, or another's."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return ""
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in owners:
            return ""
        return os.read(descriptor, longest).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def remove_tree(name: str, within: int) -> None:
    """Remove a folder with all that is in it, if it is there, durably. A link in it is removed, not followed."""
    with suppress(FileNotFoundError):
        shutil.rmtree(name, dir_fd=within)
    os.fsync(within)


def found_within(folder: int, names: Container[str]) -> str:
    """The path of the first folder in it, at whatever depth, that has one of these names; empty if none has."""
    for above, folders, _, _ in os.fwalk(dir_fd=folder):
        for each in folders:
            if each in names:
                return os.path.normpath(os.path.join(above, each))
    return ""


def move_new(name: str, within: int, new: str, there: int) -> None:
    """Rename in one step. FileExistsError if the new name is taken: nothing is replaced."""
    _rename(name, within, new, there, _NOREPLACE)


def exchange(name: str, within: int, other: str, there: int) -> None:
    """Let two names change places in one step."""
    _rename(name, within, other, there, _EXCHANGE)


@cache
def _renameat2() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError) as error:
        raise NotSupportedError("driver = files needs Linux and its renameat2(), which is not here") from error
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function


def _rename(name: str, within: int, new: str, there: int, flags: int) -> None:
    if _renameat2()(within, os.fsencode(name), there, os.fsencode(new), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name, None, new)


def mount_of(descriptor: int) -> str:
    """The number of the mount that it is in. No rename leads from one into another, even of one file system."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        return next(line.split()[1] for line in file if line.startswith("mnt_id:"))


def why_no_renames(within: int) -> str:
    """Why folders cannot be published in this file system; empty if they can. It leaves nothing behind."""
    first, second = "probe-1", "probe-2"
    try:
        for name in (first, second):
            shutil.rmtree(name, ignore_errors=True, dir_fd=within)  # a crash has left it
            os.mkdir(name, 0o700, dir_fd=within)
        with opened(first, within) as folder:
            write_file("first", "", folder)
        try:
            move_new(first, within, second, within)
            return "a rename that is to replace nothing (RENAME_NOREPLACE) has replaced a folder"
        except FileExistsError:
            pass
        exchange(first, within, second, within)
        with opened(second, within) as exchanged:
            if "first" not in os.listdir(exchanged):
                return "an exchange of two folders (RENAME_EXCHANGE) has not exchanged them"
            os.fsync(exchanged)
        os.fsync(within)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP):
            flags = "RENAME_NOREPLACE and RENAME_EXCHANGE"
            return f"it has no renameat2() with {flags}, or no fsync() of folders: {described(error)}"
        raise
    finally:
        for name in (first, second):
            shutil.rmtree(name, ignore_errors=True, dir_fd=within)
    return ""
