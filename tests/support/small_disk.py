"""A small file system in memory, which can be full."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import txpool

if TYPE_CHECKING:
    from tests.conftest import Require


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)


@contextmanager
def small_disk(folder: Path, size: int, require: Require) -> Iterator[None]:
    """The folder is a file system of its own, of so many bytes."""
    require(os.geteuid() == 0, "root, who can mount")
    try:
        mount("-t", "tmpfs", "-o", f"size={size}", "none", folder)
    except (OSError, subprocess.CalledProcessError):
        require(False, "a machine where root can mount")
    yield
    txpool.configure()
    gc.collect()
    while os.path.ismount(folder):
        subprocess.run(["umount", "-l", folder], check=True)
