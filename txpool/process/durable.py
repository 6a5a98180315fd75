"""What a resource in a folder needs: durable files, an identity, and a generation."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def sync(*paths: str | Path) -> None:
    """Make durable what was written to files, or the names in folders, one after the other. OSError."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def create_file(file: str | Path, content: bytes | bytearray) -> None:
    """Make a file, durably. Whoever sees its name finds it whole. FileExistsError if the name is taken.

    After any other error the file may be there. A crash may leave a draft beside it, whose name ends in `.new`.
    """
    file = Path(file)
    draft = file.with_name(f"{secrets.token_hex(8)}.new")
    try:
        draft.write_bytes(content)
        sync(draft)
        os.link(draft, file)  # unlike a rename, a link replaces nothing
    finally:
        with suppress(OSError):  # or it would hide that the name is taken
            draft.unlink()
    sync(file.parent)


def identity_in(file: str | Path) -> str:
    """A random identity, which this file keeps: whoever comes first makes it. OSError.

    Its folder is made as well, for its owner alone; the folder above must be there.
    """
    file = Path(file)
    if not file.exists():
        file.parent.mkdir(mode=0o700, exist_ok=True)
        sync(file.parent.parent)  # first: whoever finds the identity relies on the folder
    return identity_within(file)


def identity_within(file: Path) -> str:
    """As `identity_in`, in a folder that is there, durably."""
    if not file.exists():
        with suppress(FileExistsError):  # another process was faster
            create_file(file, secrets.token_hex(16).encode("ascii"))
        sync(file.parent)  # also what the other has made
    return file.read_text(encoding="ascii")


def generation_in(file: str | Path) -> str:
    """What changes if this empty file is another one, as in a restored copy: whoever comes first makes it. OSError.

    A restore that keeps the file itself, as a volume's snapshot does, changes nothing: remove the file after it.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return f"{found.st_ino}.{found.st_ctime_ns}"  # a number that has become free may be given again
