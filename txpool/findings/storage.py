"""Findings about where files are stored: the kind of file system, its free space, and permissions."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from txpool.findings.finding import Finding, failure, ok, warning

_MOUNTS = Path("/proc/self/mounts")
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "gfs2"}
)
_NETWORK_FUSE = (
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.rclone",
    "fuse.ceph",
    "fuse.juicefs",
    "fuse.gcsfuse",
)
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_LITTLE_SPACE = 100 * 1024 * 1024  # bytes
_MEGABYTE = 1024 * 1024


def storage_findings(what: str, path: Path) -> Iterator[Finding]:
    """Findings about the file system of `path`; `what` names what is stored there, for people."""
    yield from file_system_findings(what, file_system(path.resolve()))
    yield from free_space_findings(what, shutil.disk_usage(path).free)


def file_system_findings(what: str, kind: str) -> Iterator[Finding]:
    """A finding if a kind of file system is not safe."""
    if kind in _NETWORK or kind.startswith(_NETWORK_FUSE):
        yield failure(
            "storage",
            f"{what} is on a network file system ({kind})",
            "its locks and its write-ahead log are not safe there: two processes could both hold a lock",
            "move it to a local disk; to share it between hosts, use a database on a server",
        )
    elif kind in _VOLATILE:
        yield warning(
            "storage",
            f"{what} is in memory ({kind})",
            "the next restart of the machine deletes it, and decisions with it: what was committed in one database "
            "would roll back in another",
            "move it to a local disk",
        )


def free_space_findings(what: str, free: int) -> Iterator[Finding]:
    """The finding about the free space, given in bytes."""
    if free < _LITTLE_SPACE:
        yield warning(
            "storage",
            f"{free // _MEGABYTE} MB are free on the disk of {what}",
            "a full disk refuses every decision, and all transactions roll back",
            "free some space",
        )
    else:
        yield ok("storage", f"{free // _MEGABYTE} MB are free on the disk of {what}")


def file_system(path: Path) -> str:
    """The kind of the file system that holds an absolute path; empty if it is not known."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    kinds = {}
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        kinds[point.replace("\\040", " ")] = kind
    return next((kinds[str(folder)] for folder in (path, *path.parents) if str(folder) in kinds), "")


def others_may_write(path: Path) -> bool:
    """Whether every user of this machine may write it."""
    return bool(path.stat().st_mode & stat.S_IWOTH)


def mode_of(path: Path) -> int:
    """The file's permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def owner_differs(path: Path) -> bool:
    """Whether it belongs to another user than this process's."""
    return path.stat().st_uid != os.geteuid()
