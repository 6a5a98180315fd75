"""What a resource in a folder needs: durable names, and an identity that a file keeps."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def sync(path: str | Path) -> None:
    """Make what was written to a file durable, or the names in a folder. OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def identity_in(file: str | Path) -> str:
    """A random identity, which this file keeps: whoever comes first makes it. Its folder must be there. OSError."""
    file = Path(file)
    if not file.exists():
        made = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
        try:
            made.write_text(secrets.token_hex(16), encoding="ascii")
            sync(made)
            with suppress(FileExistsError):  # another process was faster
                os.link(made, file)
            sync(file.parent)
        finally:
            made.unlink(missing_ok=True)
    return file.read_text(encoding="ascii")
