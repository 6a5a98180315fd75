"""control.folder: whose it may be, the sockets in it, and which of them nobody listens on any more.

A socket whose process is dead refuses a connect. That is how the dead are told from the living: no pid is asked. A
socket is bound, and a dead one removed, only under the folder's lock: between bind and listen, one refuses as well.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from txpool.config.ownership import user, why_not_trusted
from txpool.errors import ConfigurationError

_SUFFIX = ".sock"
_LOCK = "lock"
_LOCK_WAIT = 2.0  # seconds
#: Bytes of a socket's path, as Linux allows.
_LONGEST = 107
_CREDENTIALS = struct.Struct("3i")


def require_supported() -> None:
    """ConfigurationError if this system has no unix sockets that tell who is at the other end."""
    if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "SO_PEERCRED"):
        raise ConfigurationError(
            "control.folder needs unix sockets that tell the user at the other end (SO_PEERCRED), and this system has "
            "none: leave control.folder out"
        )


def ensure(folder: Path) -> Path:
    """Make the folder, if it is missing, for its owner alone. ConfigurationError if it is not safe to use."""
    require_supported()
    with suppress(FileExistsError):
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            if not isinstance(error, FileExistsError):
                raise ConfigurationError(f"control.folder = {folder} cannot be made: {error.strerror}") from error
            raise
    reason = why_not_safe(folder)
    if reason is not None:
        raise ConfigurationError(f"control.folder = {folder} is not used: {reason}")
    if len(os.fsencode(folder / _new_name())) > _LONGEST:
        raise ConfigurationError(
            f"control.folder = {folder} is too long: a socket's path may have {_LONGEST} bytes. Name a shorter one"
        )
    return folder


def why_not_safe(folder: Path, owner: int | None = None) -> str | None:
    """Why others than `owner` (a user's number, default our own) could reach into the folder; None if none could."""
    owner = os.geteuid() if owner is None else owner
    reason = why_not_trusted(folder, owner=owner)
    if reason is not None:
        return reason
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is no folder"
    if status.st_uid != owner:
        return f"{folder} belongs to {user(status.st_uid)}, and not to {user(owner)}: name a folder of your own"
    if stat.S_IMODE(status.st_mode) & 0o077:
        return f"others may enter {folder}: chmod 700 {folder}"
    return None


def bound(folder: Path) -> tuple[socket.socket, Path]:
    """A socket that listens in the folder, and its path. Removes those that dead processes have left. OSError."""
    path = folder / _new_name()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _locked(folder):
            _remove_dead(folder)
            listener.bind(str(path))
            listener.listen(8)
    except BaseException:
        listener.close()
        raise
    return listener, path


def sockets(folder: Path) -> list[Path]:
    """The sockets of living processes, and of dead ones that nobody has removed yet."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


def remove_dead(folder: Path) -> None:
    """Remove the sockets of dead processes, unless the folder's lock stays held."""
    with suppress(OSError), _locked(folder):
        _remove_dead(folder)


def peer(connection: socket.socket) -> tuple[int, int]:
    """The pid and the user's number at the other end, as the kernel knows them."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def _new_name() -> str:
    """The pid is for people; the rest makes it another name than that of an earlier process with that pid."""
    return f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"


def _remove_dead(folder: Path) -> None:
    for path in folder.glob(f"*{_SUFFIX}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Not flock(), whose lock a forked child would hold on to. OSError if it stays held."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        until = monotonic() + _LOCK_WAIT
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):
                if monotonic() > until:
                    raise
                sleep(0.01)
        yield
    finally:
        os.close(descriptor)
